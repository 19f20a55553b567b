"""Batched matrix products for kernels that depend on the memory layout.

oneDNN's kernels receive contiguous matrices, one member after another, or the transposes of such matrices. Torch copies
other layouts, and a transposed weight that is a column of an array's parameters entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Copied:
    """A product whose factors are copied to contiguous memory first, in their own order."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._given: list[Tensor] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._passed: list[Tensor] = []

    def __call__(self, *args: Tensor, **kwargs: Any) -> Any:
        if len(args) != len(self._given) or any(a is not b for a, b in zip(args, self._given, strict=True)):
            self._prepare(args)
        for room, source in self._copies:
            room.copy_(source)
        return self.function(*self._passed, **kwargs)

    def _prepare(self, args: tuple[Tensor, ...]) -> None:
        self._given, self._copies, self._passed = list(args), [], list(args)
        for i in (len(args) - 2, len(args) - 1):
            source = args[i]
            turned = source.stride(1) == 1 and source.stride(2) != 1
            flat = source.transpose(1, 2) if turned else source
            if not flat.is_contiguous():
                room = flat.new_empty(flat.shape)
                self._copies.append((room, flat))
                self._passed[i] = room.transpose(1, 2) if turned else room


class Added:
    """A batched product to which the bias is added afterwards.

    Args:
        function: the product with `out`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, bias: Tensor, x: Tensor, weight: Tensor, *, out: Tensor) -> None:
        self.function(x, weight, out=out)
        out.add_(bias)


class InTurn:
    """A batched product as one product per member.

    Args:
        function: the product of two matrices with `out`, of which `batched` is the batched form.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._given: tuple[Tensor, ...] = ()
        self._calls: list[tuple[tuple[Tensor, ...], Tensor]] = []

    def __call__(self, *args: Tensor, out: Tensor) -> None:
        given = *args, out
        if len(given) != len(self._given) or any(a is not b for a, b in zip(given, self._given, strict=True)):
            self._given = given
            self._calls = [(tuple(row[:-1]), row[-1]) for row in zip(*(t.unbind(0) for t in given), strict=True)]
        function = self.function
        for matrices, room in self._calls:
            function(*matrices, out=room)
