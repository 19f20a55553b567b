"""Cutting an array into blocks of members that run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hfta_nb.array.engine import Block
from hfta_nb.array.views import narrowed

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


class Blocks:
    """The blocks of an array; those over leaves are kept, as their tensors are views that stay."""

    def __init__(self, array: FusedArray) -> None:
        self.array = array
        self._leaves: dict[tuple[int, int, bool], Block] = {}

    def clear(self) -> None:
        """Forget the views; wanted after the array's tensors have moved."""
        self._leaves.clear()

    def leaves(self) -> list[Block]:
        """Blocks whose parameters are leaves over the arena's memory: what `backward` differentiates by."""
        size, members = self.array.block_size, len(self.array)
        return [self._leaf(i, min(i + size, members), size == 1) for i in range(0, members, size)]

    def only(self, member: int) -> list[Block]:
        """A block of one member, which runs as the plain module it is."""
        return [self._leaf(member, member + 1, True)]

    def _leaf(self, start: int, stop: int, single: bool) -> Block:
        array = self.array
        named = dict(array.named_parameters())
        block = self._leaves.get((start, stop, single))
        if block is not None and all(p.requires_grad == named[k].requires_grad for k, p in block.parameters.items()):
            return block
        rows: Any = start if single else slice(start, stop)
        # A member that runs alone is differentiated at its true sizes.
        boxes = array.engine.across.boxes(start) if single and array.engine.across is not None else None

        def part(name: str, tensor: Tensor) -> Tensor:
            return tensor[rows] if boxes is None else narrowed(tensor[rows], boxes[name], 0)

        parameters = {
            k: part(k, p.detach()).data.requires_grad_(p.requires_grad)
            for k, p in named.items()
            if boxes is None or k in boxes
        }
        buffers = {k: b[rows] for k, b in array.named_buffers()}
        grads = {k: part(k, array.arena_of(k).grad_view(k)) for k in parameters if named[k].requires_grad}
        block = Block(start, stop, single, parameters, buffers, grads)
        self._leaves[start, stop, single] = block
        return block

    def graph(self) -> list[Block]:
        """Blocks whose parameters are part of the autograd graph: what `forward` differentiates through."""
        array = self.array
        size, single = array.block_size, array.block_size == 1
        parts = {k: p.unbind(0) if single else torch.split(p, size) for k, p in array.named_parameters()}
        buffers = {k: b.unbind(0) if single else torch.split(b, size) for k, b in array.named_buffers()}
        return [
            Block(
                start,
                min(start + size, len(array)),
                single,
                {k: v[i] for k, v in parts.items()},
                {k: v[i] for k, v in buffers.items()},
            )
            for i, start in enumerate(range(0, len(array), size))
        ]
