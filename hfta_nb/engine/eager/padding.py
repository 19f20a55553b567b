"""Keeps padding, and its gradients, at zero."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hfta_nb.engine.members.arena import Arena
from hfta_nb.engine.members.padded_entries import clear_padded, keep_bits


class Padding:
    """Masks of the padded entries of an array's arenas.

    Args:
        arenas: of the parameters.
        owned: by parameter or buffer, which entries are the members' own; see `FusedArray`.
    """

    def __init__(self, arenas: Sequence[Arena], owned: Mapping[str, Tensor]) -> None:
        self._arenas, self._owned = arenas, owned
        self._masks: dict[int, Tensor] = {}

    @torch.no_grad()
    def clear(self, parameters: Mapping[str, Tensor], names: Collection[str]) -> None:
        """Set the gradients of padding to zero. Other values occur only for members that have diverged to NaN.

        Args:
            parameters: all tensors of the array, by name.
            names: of those whose gradients have changed.
        """
        for number, arena in enumerate(self._arenas):
            mask = self._mask(number)
            held = {s.name for s in arena.spans if arena.holds_grad(parameters[s.name], s.name)}
            if held:
                clear_padded(arena.grad, mask)
            for span in arena.spans:
                grad = parameters[span.name].grad
                if span.name in names and grad is not None and span.name not in held:
                    clear_padded(grad, mask[:, span.start : span.stop].view(grad.shape))

    def clear_values(self, tensors: Mapping[str, Tensor]) -> None:
        """Set padding to zero, in all tensors of the array by name, after the caller has written to them."""
        for name, own in self._owned.items():
            tensors[name].data.masked_fill_(~own.to(tensors[name].device), 0)

    def _mask(self, number: int) -> Tensor:
        if number not in self._masks:
            arena = self._arenas[number]
            mask = torch.zeros_like(arena.data, dtype=torch.bool)
            for span in arena.spans:
                if span.name in self._owned:
                    mask[:, span.start : span.stop] = ~self._owned[span.name].to(mask.device).flatten(1)
            self._masks[number] = keep_bits(mask, arena.data)
        return self._masks[number]
