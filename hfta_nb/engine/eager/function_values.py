"""The values that functions keep for each member, by place: copies, comparisons, and what is put back."""

from __future__ import annotations

import ctypes
import types
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from mmap import mmap
from queue import SimpleQueue
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hfta_nb.engine.eager.attributes import EMPTY, Attributes
from hfta_nb.engine.eager.holders import Owners, of_library
from hfta_nb.engine.eager.joined_values import copies_of
from hfta_nb.engine.eager.mutable_values import restore_value
from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.random_streams import STREAMS

_KINDS = (Tensor, np.ndarray, *STREAMS, list, dict, set, tuple, deque, bytearray, array)


class FunctionValues(Attributes):
    """Values by place; what other holders own is referred to, not copied."""

    def copies(self, values: Mapping[Any, Any], tensors: Mapping[int, Tensor] = EMPTY) -> dict[Any, Any]:
        memo = memo_of(values.values())
        memo.update(tensors)
        return copies_of(values, memo)

    def copy_member(self, src: int, dst: int) -> None:
        self.drop(dst)
        self.keep(dst, self.copies(self.of(src)))


class Version:
    """The version of a tensor, in place of a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, self._of(tensor)

    @staticmethod
    def _of(tensor: Tensor) -> int:
        return 0 if tensor.is_inference() else tensor._version

    def changed(self) -> bool:
        return self._of(self.tensor) != self.version


def memo_of(values: Iterable[Any]) -> Owners:
    """For copying values: holders' owners, and objects of libraries beside iterators, stay what they are."""
    memo = Owners()
    for inner in walk(v for v in values if not isinstance(v, Tensor)):
        if not isinstance(inner, _KINDS) and of_library(type(inner)) and not hasattr(inner, "__next__"):
            memo[id(inner)] = inner
    return memo


def is_replaced(value: Any) -> bool:
    """True for what a call works on a copy of: tensors, iterators, and lists and tuples of them.

    A tensor may be part of a graph, and an iterator can't be put back.
    """
    if isinstance(value, list | tuple):
        return any(map(is_replaced, value))
    return isinstance(value, Tensor) or hasattr(value, "__next__")


def same(value: Any, old: Any, copied: bool, content: Any) -> bool:
    """True if a value is the same object as before, with the same content."""
    if value is not old and not (copied and isinstance(value, list)):  # a list may be the entries of the same list
        return isinstance(value, int | float | str) and type(value) is type(old) and value == old
    try:
        return not copied or isinstance(content, Version) or same_value(value, content)
    except Exception:  # members' values that can't be compared within vmap
        return False


def put_back(value: Any, content: Any) -> Any:
    """The same object, with its earlier content."""
    if type(value) is list and isinstance(content, list):  # the entries of a list, which are put back by themselves
        return [put_back(v, c) for v, c in zip(value, content, strict=True)]
    if isinstance(content, Version) or same_value(value, content):
        return value
    return restore_value(value, content)


STUCK = (
    *(types.GeneratorType, _BaseDataLoaderIter, SimpleQueue, memoryview, mmap),
    *(ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union),
)
"""What advances when it is used, or is memory of another library, and can't be copied."""

_MOST_BYTES = 2**20
"""Larger memory is not looked at."""


def position(value: Any) -> Any:
    """What is another one when a value of `STUCK` has been changed."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, {k: id(v) for k, v in frame.f_locals.items()})
    if isinstance(value, _BaseDataLoaderIter):
        return {k: v for k, v in vars(value).items() if isinstance(v, int)}
    if isinstance(value, SimpleQueue):
        return value.qsize()
    try:
        held = memoryview(value)
        return held.tobytes() if held.nbytes <= _MOST_BYTES else None
    except (TypeError, ValueError):  # memory that was let go of
        return None
