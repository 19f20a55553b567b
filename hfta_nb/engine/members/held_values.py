"""What the values that a module holds refer to: containers, functions with closures, partials, objects."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

_MOST = 50_000
"""A search ends after this many values."""

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_EMPTY = frozenset({dict, OrderedDict, list, set})
"""Types of which a module has 15 empty values, which are passed over."""
_ATOMS = frozenset({int, float, str, bool, type(None)})
_SPECIAL = ("__deepcopy__", "__reduce__", "__reduce_ex__")
_LEAVES = (
    *(int, float, complex, str, bytes, type(None), type, range, slice, types.ModuleType, types.BuiltinFunctionType),
    *(Tensor, nn.Module),
)


def walk(roots: Iterable[Any]) -> Iterator[Any]:
    """The values within some values at any depth, these included, each object once; modules are not entered.

    Numbers, strings and empty containers are left out.
    """
    waiting, seen = list(roots), set[int]()
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        kind = type(value)
        if kind in _ATOMS or (kind in _EMPTY and not value) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        waiting += inside(value)


def inside(value: Any) -> Iterable[Any]:
    """The values that a value holds; nothing for a tensor or a module."""
    if isinstance(value, _LEAVES):
        return ()
    if isinstance(value, dict):
        return list(dict.values(value))
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            return list(kind.__iter__(value))  # a subclass may forbid its own methods
    if isinstance(value, types.FunctionType):
        defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
        return *(cell.cell_contents for cell in cells(value)), *defaults
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    cls = type(value)
    own = any(getattr(cls, name, None) is not getattr(object, name, None) for name in _SPECIAL)
    plain = cls is types.SimpleNamespace or not own
    return list(getattr(value, "__dict__", {}).values()) if plain else ()


def cells(function: types.FunctionType) -> list[types.CellType]:
    """The cells of a closure that hold something."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # raised for an empty cell
            found.append((cell, cell.cell_contents)[0])
    return found
