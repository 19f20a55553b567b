"""Values that can change in place: containers, tensors, random streams, objects."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.utils.hooks import RemovableHandle

from hfta_nb.engine.equality import is_plain, same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.random_streams import STREAMS, go_to, position_of

_MAX_DEPTH = 8
_PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type, range, slice, torch.Size, torch.dtype, torch.device),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial),
    *(nn.Module, weakref.ref, RemovableHandle, torch.layout, torch.memory_format),
)
"""Types whose values never change, or are tracked elsewhere."""

Memo = dict[int, Any]
"""Copies by the id of the original; a module's tensors map to themselves. As for `copy.deepcopy`, the originals are
listed under its own id, so that no other object gets one of their ids meanwhile."""


_ENTRIES = (dict, list, tuple, set, deque)
"""Types whose values hold others as entries."""


def is_mutable(value: Any, depth: int = 0) -> bool:
    """True if a value can change while it stays the same object."""
    if isinstance(value, tuple | frozenset):
        return depth <= _MAX_DEPTH and any(is_mutable(v, depth + 1) for v in value)
    return not isinstance(value, _PLAIN)


def copy_value(value: Any, memo: Memo, depth: int = 0) -> Any:
    """A deep copy, except for immutable parts.

    Raises:
        TypeError: a part of it cannot be copied; then `memo` is as it was, without the copies of other parts.
    """
    if id(value) in memo:
        return memo[id(value)]
    known = len(memo)
    try:
        return _copied(value, memo, depth)
    except TypeError:
        while len(memo) > known:  # half a copy is none for another place that holds the same value
            memo.popitem()
        raise


def _copied(value: Any, memo: Memo, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError("nested too deeply")
    if not is_mutable(value):
        return value
    if isinstance(value, Tensor):
        # Tensors of an autograd graph are not copied: a copy would not be part of the graph.
        new: Any = value
        if not value.requires_grad:
            # Without rules, by which a copy of what members share may become one for each; they tell `requires_grad`.
            with torch._C.DisableTorchFunction() if type(value) is Tensor else nullcontext():
                new = value.detach().clone()
    elif isinstance(value, torch.Generator):
        new = torch.Generator(value.device)
        new.set_state(value.get_state())
    elif type(value) in (list, set, deque):
        memo[id(value)] = new = deque(maxlen=value.maxlen) if isinstance(value, deque) else type(value)()
        parts = [copy_value(v, memo, depth + 1) for v in value]
        new.update(parts) if isinstance(new, set) else new.extend(parts)
    elif type(value) is tuple:
        new = tuple(copy_value(v, memo, depth + 1) for v in value)
    elif type(value) is dict:
        memo[id(value)] = new = {}
        new.update({k: copy_value(v, memo, depth + 1) for k, v in value.items()})
    else:
        for inner in walk([value]):
            if id(inner) not in memo and (isinstance(inner, nn.Module) or _undeepcopied(inner)):
                memo[id(inner)] = copy_value(inner, memo, depth + 1)
        try:
            new = copy.deepcopy(value, memo)
        except Exception as error:
            raise TypeError(f"{type(value).__name__} can't be copied") from error
    memo[id(value)] = new
    memo.setdefault(id(memo), []).append(value)
    return new


def _undeepcopied(value: Any) -> bool:
    """True for tensors that `copy.deepcopy` refuses: those of an autograd graph, and those within `vmap`."""
    return isinstance(value, Tensor) and (not value.is_leaf or functorch.is_batchedtensor(value))


def agree(a: Any, b: Any) -> bool:
    """True if two members' values count as the same."""
    try:
        return same_value(a, b) or bool(a == b)
    except Exception:  # values whose comparison fails count as different
        return False


def restore_all(memo: Memo) -> dict[int, Any]:
    """Restore the content that values had when they were copied, each in the same object: what they share stays shared.

    Args:
        memo: of the copies.

    Returns:
        By the ids of originals that can't be changed in place, their copies, which are to take their places.
    """
    pairs = [(value, memo[id(value)]) for value in memo.get(id(memo), ()) if id(value) in memo]
    originals = {id(copied): value for value, copied in pairs}
    lost: dict[int, Any] = {}
    for value, copied in pairs:
        if not isinstance(value, _ENTRIES) and not is_plain(type(value)):
            restored = value if same_value(value, copied) else restore_value(value, copied)
            if restored is not value:
                originals.pop(id(copied), None)
                lost[id(value)] = copied

    def back(held: Any) -> Any:
        return originals.get(id(held), held)

    held: Any
    before: Any
    for value, copied in pairs:
        held, before = [v if isinstance(v, _ENTRIES) else getattr(v, "__dict__", None) for v in (value, copied)]
        if isinstance(held, dict) and isinstance(before, dict):
            entries: Any = {k: back(v) for k, v in before.items()}
            if list(held) != list(entries) or any(held[k] is not v for k, v in entries.items()):
                _refill(held, entries)
        elif isinstance(held, list | deque):
            entries = [back(v) for v in before]
            if len(held) != len(entries) or any(a is not b for a, b in zip(held, entries, strict=True)):
                held.clear()
                held.extend(entries)
        elif isinstance(held, set) and held != before:
            held.clear()
            held.update(map(back, before))
    return lost


def _refill(held: dict[Any, Any], entries: Mapping[Any, Any]) -> None:
    """Give a dict other entries, not by methods of its own, which a subclass may forbid."""
    kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict  # an ordered one keeps its keys once more
    kind.clear(held)
    for key, entry in entries.items():
        kind.__setitem__(held, key, entry)


def restore_value(value: Any, before: Any) -> Any:
    """The previous value, in the same object if possible.

    Args:
        value: the changed value.
        before: a copy of the previous value.
    """
    if isinstance(value, Tensor):
        if value.shape == before.shape:
            with torch.no_grad():
                value.copy_(before)
            return value
    elif isinstance(value, STREAMS):
        go_to(value, position_of(before))
        return value
    elif isinstance(value, np.ndarray) and value.shape == before.shape and value.flags.writeable:
        value[...] = before
        return value
    elif type(value) in (list, dict, set, deque):
        value.clear()
        value.update(before) if isinstance(value, dict | set) else value.extend(before)
        return value
    return before


def may_overwrite(value: Any, new: Any) -> bool:
    """True if `overwrite` can give a value the content of another."""
    kind = type(value)
    return kind is type(new) and (kind in (list, dict, set, deque) or (bool(vars(value)) if is_plain(kind) else False))


def overwrite(value: Any, new: Any, depth: int = 0) -> bool:
    """Give a container or an object the content of another of its type; what it holds stays the same objects, which get
    the content of theirs, where that is possible."""

    def entry(old: Any, given: Any) -> Any:
        inner = depth < _MAX_DEPTH and may_overwrite(old, given) and overwrite(old, given, depth + 1)
        return old if inner or old is given else given

    if isinstance(value, set | list | deque):
        entries = [entry(a, b) for a, b in zip(value, new, strict=True)] if len(value) == len(new) else list(new)
        restore_value(value, new if isinstance(value, set) else entries)
        return True
    held, wanted = (value, new) if isinstance(value, dict) else (vars(value), vars(new))
    found = {key: entry(held[key], v) if key in held else v for key, v in wanted.items()}
    held.clear()
    held.update(found)
    return True
