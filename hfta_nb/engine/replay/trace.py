"""A trace: the kernels that a step calls, and the memory that they use.

A trace names memory instead of tensors: a storage and the geometry of a view of it. Therefore views are no operations,
and in-place writes need no special treatment: a program that makes the same calls on the same memory in the same order
computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy.kernel_variants import Operand


class BufferView(NamedTuple):
    """A strided view of a storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def operand(self) -> Operand:
        """Its geometry, without the place."""
        return Operand(self.size, self.stride, self.dtype)

    @property
    def reach(self) -> int:
        """How many entries of memory it extends over, from its offset on."""
        return 0 if 0 in self.size else 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))

    def permuted(self, axes: Sequence[int]) -> BufferView:
        """The same memory, with the axes in another order."""
        size, stride = (tuple(part[axis] for axis in axes) for part in (self.size, self.stride))
        return self._replace(size=size, stride=stride)


def overlap(a: BufferView, b: BufferView) -> bool:
    """True if two views share an entry."""
    if a.storage != b.storage or a.dtype != b.dtype:
        return a.storage == b.storage
    marks = torch.zeros(max(a.offset + a.reach, b.offset + b.reach), dtype=torch.bool)
    marks.as_strided(a.size, a.stride, a.offset).fill_(True)
    return bool(marks.as_strided(b.size, b.stride, b.offset).any())


@dataclass
class Instruction:
    """One kernel call.

    Attributes:
        function: the overload of an aten operator.
        args, kwargs: with a `BufferView` for every tensor.
        results: views of the returned tensors; None for other values.
        makes: storages that it creates.
        writes: existing storages that it writes to.
        member: whose random numbers it draws, if it draws any.
        read: storages among the arguments, once they are known.
    """

    function: Any
    args: Any
    kwargs: Any
    results: tuple[BufferView | None, ...]
    makes: tuple[int, ...]
    writes: frozenset[int]
    member: int | None = None
    draws: bool = False
    read: frozenset[int] | None = field(default=None, init=False, repr=False, compare=False)

    def reads(self) -> frozenset[int]:
        """Storages among the arguments."""
        if self.read is None:
            self.read = frozenset(p.storage for p in places((self.args, self.kwargs)))
        return self.read

    def changes(self) -> frozenset[int]:
        """Storages that it creates or writes to."""
        return self.writes | set(self.makes)

    def like(self, other: Instruction) -> bool:
        """True if both do the same to the same memory."""
        return (
            self.function is other.function
            and self.results == other.results
            and self.member == other.member
            and _same(self.args, other.args)
            and (not (self.kwargs or other.kwargs) or _same(self.kwargs, other.kwargs))
        )


def places(tree: Any) -> list[BufferView]:
    """All views in nested lists, tuples and dicts."""
    if isinstance(tree, BufferView):
        return [tree]
    found: list[BufferView] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[BufferView]) -> None:
    for value in tree.values() if isinstance(tree, dict) else tree:
        kind = type(value)
        if kind is BufferView:
            found.append(value)
        elif kind not in LEAVES and isinstance(value, list | tuple | dict):
            _gather(value, found)


def with_views(tree: Any, function: Callable[[BufferView], Any]) -> Any:
    """Nested lists, tuples and dicts, with what a function gives for each view in its place."""
    if isinstance(tree, BufferView):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(with_views(v, function) for v in tree)
    if isinstance(tree, dict):
        return {k: with_views(v, function) for k, v in tree.items()}
    return tree


LEAVES = frozenset({int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of arguments that contain no views; the most frequent ones besides views."""


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if type(a) is BufferView:
        return bool(a == b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    try:
        return bool(a == b) or a is b or (a != a and b != b)
    except NotImplementedError:  # objects of torch's own, as of its profiler
        return False


class NotRecordableError(Exception):
    """The reason why a step cannot be replayed."""


@dataclass
class Trace:
    """The recorded calls.

    Attributes:
        calls: in order.
        held: by number, a tensor of every storage that existed before or is `lasting`; for others an empty tensor on
            their device, to save memory.
        sizes: bytes of every storage, by number.
        lasting: storages that calls have created from constants only, and not written to.
        outside: storages that existed before.
        given: those of them that are inputs, at any address.
        constants: those of them that Python code has created from numbers, at any address.
        reason: why this cannot be replayed; empty if it can.
        cut: how many of the calls belong to the first of two halves; None if there are no halves.
        blocks: the number of calls at the end of each block of members.
        branches: how many threads may run blocks in parallel.
    """

    calls: list[Instruction] = field(default_factory=list)
    held: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    lasting: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    constants: set[int] = field(default_factory=set)
    reason: str = ""
    cut: int | None = None
    blocks: list[int] = field(default_factory=list)
    branches: int = 1

    def forget_made(self) -> None:
        """Release created storages, which add up to all that a step allocates; the trace can then only be compared."""
        kept, self.lasting = self.outside | self.constants, set()
        self.held = [t if i in kept else t.new_empty(0) for i, t in enumerate(self.held)]

    def like(self, other: Trace) -> bool:
        """True if two steps were the same."""
        anywhere = self.given | self.constants
        same_outside = (self.outside, self.given, self.constants) == (
            other.outside,
            other.given,
            other.constants,
        ) and all(address(self.held[i]) == address(other.held[i]) for i in self.outside - anywhere)
        same_constants = same_outside and all(torch.equal(self.held[i], other.held[i]) for i in self.constants)
        halves_alike = (self.cut, self.blocks, self.branches) == (other.cut, other.blocks, other.branches)
        return same_constants and halves_alike and len(self.calls) == len(other.calls) and all(
            a.like(b) for a, b in zip(self.calls, other.calls, strict=True)
        )  # fmt: skip


def address(tensor: Tensor) -> int:
    """The address of a tensor's storage, which identifies it while it exists."""
    return int(tensor.untyped_storage()._cdata)
