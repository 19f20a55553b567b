"""What a call of a model keeps beside it: its forward hooks in lists and dicts, its code in classes and globals."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from hfta_nb.engine.eager.holders import of_library
from hfta_nb.engine.eager.reach import INSTALLED, Reach
from hfta_nb.errors import FusionError


def hooked(module: nn.Module) -> Iterator[nn.Module]:
    """The submodules, the module itself included, with hooks that a call of them calls."""
    return (inner for inner in module.modules() if inner._forward_pre_hooks or inner._forward_hooks)


def hooks_of(module: nn.Module) -> Iterator[Callable[..., Any]]:
    """The hooks that a call of a module calls before and after its submodules."""
    for inner in hooked(module):
        yield from inner._forward_pre_hooks.values()
        yield from inner._forward_hooks.values()


def check_hooks(modules: Sequence[nn.Module]) -> None:
    """Check that hooks of several modules, of which an array calls the first one's, keep what they see in one place.

    Raises:
        FusionError: each has a list or object of its own.
    """
    kept = [[_kept(hook, module) for hook in hooks_of(module)] for module in modules]
    for others in kept[1:]:
        for first, other in zip(kept[0], others, strict=False):
            if first.keys() != other.keys():
                raise FusionError(
                    "each module has a hook that keeps what it sees in an object of its own; an array has one for all",
                    where=next(iter({**first, **other}.values())),
                    remedy="register the hook on the array after fusing: array.get_submodule(path)"
                    ".register_forward_hook(hook); what it collects from array(x) has the member axis. Or let the hook "
                    "keep it on the module: module.features = output",
                )


def _kept(hook: Callable[..., Any], module: nn.Module) -> dict[int, str]:
    """What a hook of a module may write to beside the module: by id, how a person reaches it."""
    reach = Reach((hook,), module)
    return {id(h.owner): h.label for h in reach.objects()} if reach.writes else {}


def called_beside(modules: Iterable[nn.Module]) -> tuple[Any, ...]:
    """Hooks of several modules, and the classes whose code may keep something beside the modules, each once."""
    inner = [inner for module in modules for inner in module.modules()]
    held = (hooks for m in inner for hooks in (m._forward_pre_hooks, m._forward_hooks) if hooks)
    called = {id(hook): hook for hooks in held for hook in hooks.values()}
    return *called.values(), *filter(_writes, dict.fromkeys(map(type, inner)))


def writing_classes(modules: Iterable[nn.Module]) -> tuple[type, ...]:
    """The classes of modules whose code may change class attributes, global variables, or what these refer to."""
    return tuple(filter(_writes, dict.fromkeys(type(inner) for module in modules for inner in module.modules())))


_WRITES = weakref.WeakKeyDictionary[type, bool]()


def _writes(kind: type) -> bool:
    if kind not in _WRITES:
        file = str(getattr(sys.modules.get(kind.__module__), "__file__", ""))
        own = not of_library(kind) and not any(part in file for part in INSTALLED)
        _WRITES[kind] = own and Reach((kind,)).changes
    return _WRITES[kind]
