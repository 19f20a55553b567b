"""Keeping the gradients of padding at zero."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


class Padding:
    """Which entries of an array's arenas are padding.

    Args:
        array: whose arenas stay as they are while this is used.
    """

    def __init__(self, array: FusedArray) -> None:
        self._masks: dict[int, Tensor] = {}
        self._owned = array.owned

    @torch.no_grad()
    def clear(self, array: FusedArray, names: Collection[str]) -> None:
        """Set the gradients of padding to zero: they are, but for those of members that are lost to NaN.

        Args:
            array: the array.
            names: parameters whose gradients have changed.
        """
        if not self._owned or array.block_size == 1:
            return
        named = dict(array.named_parameters())
        for number, arena in enumerate(array.arenas):
            mask = self._mask(array, number)
            held = {s.name for s in arena.spans if arena.holds_grad(named[s.name], s.name)}
            if held:
                arena.grad.masked_fill_(mask, 0)
            for span in arena.spans:
                grad = named[span.name].grad
                if span.name in names and grad is not None and span.name not in held:
                    grad.masked_fill_(mask[:, span.start : span.stop].view(grad.shape), 0)

    def _mask(self, array: FusedArray, number: int) -> Tensor:
        if number not in self._masks:
            arena = array.arenas[number]
            mask = torch.zeros_like(arena.data, dtype=torch.bool)
            for span in arena.spans:
                if span.name in self._owned:
                    mask[:, span.start : span.stop] = ~self._owned[span.name].to(mask.device).flatten(1)
            self._masks[number] = mask
        return self._masks[number]
