"""Buffers that a model replaces by tensors with a gradient (``self.membrane = 0.9 * self.membrane + x``).

As in the plain module, such a buffer keeps its graph after ``array(x)``: the caller's loss may read it, and the next
call goes on from it. The array's buffer gets the members' values by a copy that autograd records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.autograd_nodes import nodes
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.errors import FusionError


def keep_gradients(state: ArrayState) -> None:
    """Let the array's buffers have the gradients of what a call has replaced them by, and no others."""
    learning, state.engine.learning = state.engine.learning, {}
    if not learning or state.trying:
        return
    buffers = dict(state.tensors.named_buffers())
    for name, rows in learning.items():
        buffer = buffers[name].detach_()
        if rows:
            values = [rows.get(i, own) for i, own in enumerate(buffer.clone().unbind(0))]
            with torch.enable_grad():
                buffer.copy_(torch.stack(values))
            state.engine.learned.add(name)


def check_apart(losses: Tensor, graphs: Mapping[Any, str]) -> None:
    """Check that a step which differentiates by itself does not depend on the graph of an earlier call.

    Args:
        losses: of the step.
        graphs: the names of the buffers that had a gradient before it, by the node of each.

    Raises:
        FusionError: it does.
    """
    name = next((graphs[node] for node in nodes([losses]) if node in graphs), None) if graphs else None
    if name is not None:
        raise FusionError(
            "the step reads a buffer that has a gradient from an earlier array(x), which it can't continue",
            where=f"array.backward, `{name}`",
            remedy="detach it first, array.name.detach_(), or compute this loss from array(x), too",
        )
