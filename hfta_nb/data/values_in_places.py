"""The values that places hold: kept for later, and compared."""

from __future__ import annotations

import copy
import itertools
import operator
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors.caught_warnings import caught_warnings

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device, range, slice)
_COMPARED: tuple[type[Any], ...] = (*PLAIN, set, frozenset, bytearray)
_ITERATORS: tuple[type[Any], ...] = (
    itertools.count,
    itertools.cycle,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)


def to_keep(value: Any) -> Any:
    """A value as it is to be kept: a copy of an iterator, which others would exhaust."""
    if not isinstance(value, _ITERATORS):
        return value
    with caught_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.14 has no copies of some; they are as they are
        try:
            return copy.copy(value)
        except TypeError:
            return value


def same(a: Any, b: Any) -> bool:
    """Whether two values that `to_keep` gave are the same: plain values and arrays by value, else by identity."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return bool(alike and ((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or all(map(same, a, b)))
    if isinstance(a, _ITERATORS):
        return repr(reduced(a)) == repr(reduced(b))
    return isinstance(a, _COMPARED) and bool(a == b or (a != a and b != b))


def reduced(iterator: Any) -> Any:
    """What an iterator of Python's own is made from, to go on where it is."""
    with caught_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return tuple(map(_plain, iterator.__reduce__()[1:]))


def _plain(part: Any) -> Any:
    """The same for iterators within."""
    if isinstance(part, tuple):
        return tuple(map(_plain, part))
    return reduced(part) if isinstance(part, _ITERATORS) else part
