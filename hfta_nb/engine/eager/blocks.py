"""Divides an array into blocks of members that run at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.after_backward import Rows
from hfta_nb.engine.eager.engine import Block
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.views import narrowed


def leaf_blocks(state: ArrayState) -> list[Block]:
    """Blocks whose parameters are leaves over the arena's memory, by which `backward` differentiates.

    They are cached in `ArrayState.views`: their tensors are views, which are valid until the array's tensors move.
    """
    size, members = state.settings.block_size, len(state)
    return [_leaf(state, i, min(i + size, members), size == 1) for i in range(0, members, size)]


def _leaf(state: ArrayState, start: int, stop: int, single: bool) -> Block:
    named = dict(state.tensors.named_parameters())
    block = state.views.get((start, stop, single))
    learning = any(b.requires_grad for b in state.tensors.buffers()) if state.engine.learned else False
    alike = block is not None and all(p.requires_grad == named[k].requires_grad for k, p in block.parameters.items())
    if block is not None and alike and not learning:
        return block
    rows: Any = start if single else slice(start, stop)
    # A member that runs alone is differentiated at its true sizes.
    architectures = state.engine.architectures
    boxes = architectures.boxes(start) if single and architectures is not None else None

    def part(name: str, tensor: Tensor) -> Tensor:
        return tensor[rows] if boxes is None else narrowed(tensor[rows], boxes[name], 0)

    parameters = {
        k: part(k, p.detach()).data.requires_grad_(p.requires_grad)
        for k, p in named.items()
        if boxes is None or k in boxes
    }
    buffers = {k: b[rows] for k, b in state.tensors.named_buffers()}  # with their graphs, see `check_apart`

    def grad_rows() -> dict[str, Tensor]:
        return {k: part(k, state.arena_of(k).grad_view(k)) for k in parameters if named[k].requires_grad}

    block = Block(start, stop, single, parameters, buffers, grad_rows)
    if not learning:
        state.views[start, stop, single] = block
    return block


def graph_blocks(state: ArrayState) -> list[Block]:
    """Blocks whose parameters belong to the autograd graph, through which `forward` differentiates."""
    size, single = state.settings.block_size, state.settings.block_size == 1
    rows: Any = Rows.apply if state.settings.as_plain else torch.unbind
    parts = {k: rows(p) if single else torch.split(p, size) for k, p in state.tensors.named_parameters()}
    if size >= len(state) and not single:  # autograd does not split sparse gradients
        parts |= {k: (p,) for k, p in state.tensors.named_parameters() if k in state.engine.sparse}
    # Not as several views at once, which autograd gives up when the buffer gets a gradient: see `keep_gradients`.
    buffers = {
        k: [b[i] if single else b[i : i + size] for i in range(0, len(state), size)]
        if k in state.engine.learned
        else (b.detach().unbind(0) if single else torch.split(b.detach(), size))
        for k, b in state.tensors.named_buffers()
    }
    return [
        Block(
            start,
            min(start + size, len(state)),
            single,
            {k: v[i] for k, v in parts.items()},
            {k: v[i] for k, v in buffers.items()},
        )
        for i, start in enumerate(range(0, len(state), size))
    ]
