"""Attributes of modules that differ between architectures, and the values that the model sees instead."""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.padded.compare import Comparison
from hfta_nb.engine.padded.member_numbers import vary
from hfta_nb.engine.padded.records import keeps_records, recorded, unread
from hfta_nb.engine.padded.size_groups import PerMemberFunction

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MAX_DEPTH = 8


def reconcilable(x: Any, y: Any, comparison: Comparison, depth: int = 0) -> bool:
    """True if one value can represent both: they are equal, or differ in numbers and functions only."""
    if comparison.same(x, y):
        return True
    if isinstance(x, bool) or isinstance(y, bool) or depth > _MAX_DEPTH:
        return False
    if isinstance(x, int | float) and isinstance(y, int | float):
        return True
    if isinstance(x, _FUNCTIONS) or type(x).__module__.startswith("torch._C"):
        return callable(x) and callable(y) and not isinstance(y, type | nn.Module)
    if type(x) is not type(y) or isinstance(x, Tensor | nn.Module | type):
        return False
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(reconcilable(a, b, comparison, depth + 1) for a, b in zip(x, y, strict=True))
    if isinstance(x, dict):
        return list(x) == list(y) and all(reconcilable(x[k], y[k], comparison, depth + 1) for k in x)
    own = getattr(x, "__dict__", None)
    if keeps_records(x):
        return unread(x, y)
    return bool(own) and reconcilable(dict(x.__dict__), dict(y.__dict__), comparison, depth + 1)


def reconciled(values: Sequence[Any]) -> Any:
    """One value that represents these values of members, which must be `reconcilable`."""
    first = values[0]
    if all(v is first for v in values):
        return first
    if keeps_records(first):
        return recorded(values)
    if isinstance(first, bool):
        return first
    if all(isinstance(v, int | float) for v in values):
        return vary(values)
    if isinstance(first, list | tuple):
        parts = [reconciled(v) for v in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, dict):
        return {k: reconciled([v[k] for v in values]) for k in first}
    if callable(first) and any(v != first for v in values):
        return PerMemberFunction(values)
    if getattr(first, "__dict__", None) and not callable(first):
        new = copy.copy(first)
        for key, value in reconciled([dict(v.__dict__) for v in values]).items():
            object.__setattr__(new, key, value)
        return new
    return first
