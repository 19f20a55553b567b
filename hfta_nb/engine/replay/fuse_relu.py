"""Fuses pointwise kernels into a product that precedes them: a ReLU, and the mask of a ReLU's gradient.

This applies if the pointwise kernel would work in the memory of the product, and no call reads the product in between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.product import Bound
from hfta_nb.engine.kernels.strategy.kernel_variants import PRODUCTS
from hfta_nb.engine.replay.trace import BufferView, Instruction

_aten = torch.ops.aten
_CALL_S, _ENTRY_S = 1e-6, 1e-10
"""Approximate cost of a pointwise kernel: per call, and per entry."""


class ReluFusion:
    """The products of a program that may absorb further calls.

    Args:
        calls: of the program.
        half: how many of them belong to the first of two halves.
        outside: storages that existed before.
    """

    def __init__(self, calls: Sequence[Instruction], half: int, outside: Collection[int]) -> None:
        self._calls, self._half, self._outside = calls, half, outside
        self._open: dict[int, tuple[int, Bound]] = {}

    def worth(self, i: int) -> float:
        """Approximate seconds saved if the package's own product computes call `i` and absorbs the next one."""
        call = self._calls[i]
        place = call.results[0] if call.function in PRODUCTS else None
        after = next((c for c in self._calls[i + 1 :] if place is not None and place.storage in c.reads()), None)
        if place is None or after is None or not (_relu(after) or _mask(after)):
            return 0.0
        return _CALL_S + math.prod(place.size) * _ENTRY_S

    def add(self, i: int, product: Bound) -> None:
        """Register the product that computes call `i`."""
        place = self._calls[i].results[0]
        if place is not None:
            self._open[place.storage] = i, product

    def takes(self, i: int, args: Sequence[Any], out: Any) -> bool:
        """True if a product can do the work of call `i`; it does so from then on.

        Args:
            i: index of the call.
            args: the actual arguments.
            out: memory for the result.
        """
        call = self._calls[i]
        relu = _relu(call)
        source = call.args[0] if relu or _mask(call) else None
        if not isinstance(source, BufferView) or source.storage not in self._open:
            return False
        at, product = self._open[source.storage]
        if (
            (at < self._half) != (i < self._half)
            or not _same_memory(product.out, out)
            or not self._unseen(source, at, i)
        ):
            return False
        if relu:
            product.then_relu()
        elif not self._standing(call.args[1], at, i) or not isinstance(args[1], Tensor) or not _masks(product, args[1]):
            return False
        del self._open[source.storage]
        return True

    def _unseen(self, place: BufferView, begin: int, end: int) -> bool:
        between = self._calls[begin + 1 : end]
        return all(place.storage not in call.reads() and place.storage not in call.writes for call in between)

    def _standing(self, place: Any, begin: int, end: int) -> bool:
        """True if the value that is read by call `end` is already there before call `begin`."""
        if not isinstance(place, BufferView):
            return False
        made = place.storage in self._outside or any(place.storage in call.makes for call in self._calls[:begin])
        return made and all(place.storage not in call.writes for call in self._calls[begin:end])


def _relu(call: Instruction) -> bool:
    return call.function is _aten.relu.default


def _mask(call: Instruction) -> bool:
    return call.function is _aten.threshold_backward.default and call.args[2] == 0


def _same_memory(product: Tensor, out: Tensor) -> bool:
    whole = product.is_contiguous() and out.is_contiguous() and product.numel() == out.numel()
    alike = whole or (product.shape[-out.ndim :], product.stride()[-out.ndim :]) == (out.shape, out.stride())
    return product.data_ptr() == out.data_ptr() and alike and product.numel() == out.numel()


def _masks(product: Bound, by: Tensor) -> bool:
    if by.is_contiguous() and product.out.is_contiguous() and by.numel() == product.out.numel():
        by = by.view(product.out.shape)
    return product.then_mask(by)
