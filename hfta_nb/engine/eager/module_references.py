"""Modules in the values of attributes: each member's values refer to the modules of the member.

A model may keep one of its modules, a list of them, or a method of itself (a hook). One member's values are set in the
module that represents all, in the member's copy and in its plain module, whose modules differ but have the same paths.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hfta_nb.engine.members.copying import rebind
from hfta_nb.engine.members.held_values import walk

_PATHS: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
"""The paths of modules that values refer to."""


def note_references(values: Iterable[Any], modules: Mapping[str, nn.Module], prefix: str) -> None:
    """Note where the modules are that some values refer to.

    Args:
        values: of attributes.
        modules: of the module that holds them, by path.
        prefix: the path of that module.
    """
    found = [v for v in walk(values) if isinstance(v, nn.Module)]
    if found:
        known = {id(m): path for path, m in modules.items()}
        for module in found:
            if id(module) in known:
                _PATHS[module] = ".".join(p for p in (prefix, known[id(module)]) if p)


def rebound(value: Any, modules: Mapping[str, nn.Module], prefix: str) -> Any:
    """The value with the modules in place of those with the same paths elsewhere; the same object if there are none."""
    held = list(walk([value]))
    named = [v for v in held if isinstance(v, nn.Module)]
    if not named:
        return value
    own = {".".join(p for p in (prefix, path) if p): module for path, module in modules.items()}
    kept = {id(m) for m in modules.values()}
    memo: dict[int, Any] = {
        id(m): own[_PATHS[m]] for m in named if id(m) not in kept and m in _PATHS and _PATHS[m] in own
    }
    if not memo:
        return value
    foreign = set(memo)
    memo |= {id(v): v for v in held if isinstance(v, Tensor | nn.Module | RemovableHandle) and id(v) not in foreign}
    finish = rebind([value], foreign, memo)
    try:
        new = copy.deepcopy(value, memo)
        finish()
    except Exception:  # what can't be copied stays; the comparison with the plain module finds what it changes
        return value
    return new
