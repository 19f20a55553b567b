"""What the backward of a member that runs alone changes on its module: buffers, attributes, ``.data`` of parameters.

A call ends before the backward of its result. Custom functions, hooks and checkpoints change the module later, and the
array takes that over when the backward has ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.attributes import AttributeKey, AttributesBefore
from hfta_nb.engine.eager.member_modules import restore_storage
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import flatten


class BackwardChanges:
    """Takes over what the backward of one call of a member changes.

    Args:
        root: the member's module.
        slots: of its tensors.
        tensors: the member's tensors, which share the array's memory.
        storages: the ``.data`` of its parameters.
        finish: stores buffers that were replaced.
        keep: stores attributes.
    """

    def __init__(
        self,
        root: nn.Module,
        slots: TensorSlots,
        tensors: Mapping[str, Tensor],
        storages: Mapping[str, Tensor],
        finish: Callable[[Mapping[str, Tensor]], None],
        keep: Callable[[dict[AttributeKey, Any]], None],
    ) -> None:
        self.root, self.slots, self.tensors, self.storages = root, slots, tensors, storages
        self.finish, self.keep = finish, keep
        self.before = AttributesBefore(root, slots)

    def follow(self, result: Any) -> None:
        """Take over what every backward of a result changes, at its end."""
        for value in flatten(result)[0]:
            if isinstance(value, Tensor) and value.grad_fn is not None:
                value.register_hook(self._at_the_end)  # type: ignore[no-untyped-call]

    def _at_the_end(self, grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._take)

    def _take(self) -> None:
        with torch.no_grad():
            restore_storage(self.tensors, self.storages)
            self.finish(self.slots.replaced(self.tensors))
        self.keep(self.before.changes())
        self.before = AttributesBefore(self.root, self.slots)


class Rows(torch.autograd.Function):
    """The members' rows of a parameter, as tensors that are no views: the model may write into them, or detach them.

    As that of a parameter, the gradient of one that is detached is dropped.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        rows = tuple(parameter.data[i].data for i in range(len(parameter)))
        ctx.rows = [weakref.ref(row) for row in rows]
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        rows = [row() for row in ctx.rows]
        own = [g if row is None or row.requires_grad else None for g, row in zip(grads, rows, strict=True)]
        found = next((g for g in own if g is not None), None)
        if found is None:
            return None
        return torch.stack([torch.zeros_like(found) if g is None else g for g in own])
