"""Which attributes of a user's objects code can read: those whose names it mentions, if it has no other means."""

from __future__ import annotations

import contextlib
import dis
import enum
import itertools
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

HARMLESS = {
    *("torch", "math", "cmath", "typing", "typing_extensions", "collections", "functools", "itertools", "operator"),
    *("enum", "dataclasses", "abc", "numbers", "hfta_nb", "warnings", "builtins", "types", "copy", "jaxtyping"),
}
"""Packages whose code reads no changing values except its arguments and torch's settings."""

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, enum.Enum),
)
"""Values that can't change."""

_BARE = ("builtins", "abc", "typing", "typing_extensions", "types")
"""Packages whose classes read no attributes of the objects of their subclasses."""
_BY_OTHER_MEANS = {
    *("getattr", "hasattr", "__getattribute__", "__setattr__", "__dict__", "dir", "attrgetter", "methodcaller"),
    *("repr", "str", "hash"),
    *("fields", "asdict", "astuple", "replace", "copy", "deepcopy", "tree_map", "tree_flatten", "tree_leaves"),
}
"""Names by which code may read or write attributes that it does not mention."""
_EQUAL = {"__eq__", "__ne__"}
_ORDER = {"__lt__", "__le__", "__gt__", "__ge__"}
_COMPARING = dict.fromkeys(("index", "count", "remove"), _EQUAL) | dict.fromkeys(
    ("min", "max", "sorted", "sort"), _ORDER
)
"""Functions that compare objects, and the methods that they call."""


class Attributes:
    """The attributes of an object.

    Args:
        value: the object, of a class that is `seen_through`.
    """

    def __init__(self, value: Any) -> None:
        self._value, self._own = value, getattr(value, "__dict__", {})
        found = [(name, of) for kind in type(value).__mro__ for name, of in vars(kind).items()]
        self._slots = [(name, of) for name, of in found if isinstance(of, types.MemberDescriptorType)]

    def read(self, names: set[str] | None) -> dict[str, Any]:
        """Those of these names; all for None."""
        found = dict(self._own)
        for name, slot in self._slots:
            with contextlib.suppress(AttributeError):  # it may be empty
                found[name] = slot.__get__(self._value)
        return found if names is None else {n: v for n, v in found.items() if n in names}


def readable(names: set[str]) -> set[str] | None:
    """The names of attributes that code with these names may read; None for all."""
    return None if names & _BY_OTHER_MEANS else names


def seen_through(kind: type) -> bool:
    """True if the code of the class and its bases is looked into, and nothing in its objects is hidden."""
    slots = all("__slots__" in vars(k) for k in kind.__mro__[:-1])
    shown = bool(kind.__dictoffset__) or slots  # other classes are written in C
    code = all(k.__module__ in _BARE or not harmless(k) for k in kind.__mro__)
    return shown and code and not issubclass(kind, nn.Module)


def same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """True if attributes are as before: an equal object may have other attributes, an equal number another type."""
    return now.keys() == before.keys() and all(
        v is before[k] or (type(v) is type(before[k]) and isinstance(v, PLAIN) and v == before[k])
        for k, v in now.items()
    )


def implied(code: types.CodeType, steps: Sequence[dis.Instruction]) -> set[str]:
    """Names that code uses without mentioning them."""
    found, kinds = set[str](), {step.opname for step in steps}
    if "MATCH_CLASS" in kinds or ("FORMAT_VALUE" in kinds and "RAISE_VARARGS" not in kinds):
        found.add("__getattribute__")  # patterns take attributes; what is formatted is part of a message, or a key
    if kinds & {"STORE_ATTR", "DELETE_ATTR"}:
        found.add("__setattr__")  # of an object that changes, everything is watched
    if "CONTAINS_OP" in kinds:
        found.add("__contains__")
    for before, step in itertools.pairwise(steps):
        if before.opname != "LOAD_CONST" and step.opname in ("COMPARE_OP", "CONTAINS_OP"):
            found |= _ORDER if {"<", ">"} & set(str(step.argval)) else _EQUAL
    return found.union(*(_COMPARING[name] for name in _COMPARING.keys() & set(code.co_names)))


def harmless(value: Any) -> bool:
    """True if code of this module, or that a value of it has, reads no changing values."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in HARMLESS
