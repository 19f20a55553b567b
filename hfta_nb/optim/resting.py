"""Members evaluated together by a closure, of which some have not asked for it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import plain
from hfta_nb.optim.optimizer_base import ArrayOptimizer


class EvaluationNeededError(Exception):
    """A member's optimizer wants to know loss and gradients where the parameters are now."""


def losses_of(losses: Any, members: int, where: str) -> list[float]:
    """What a closure has returned, one number per member.

    Raises:
        OptimError: it is something else.
    """
    values = plain(losses.detach()) if isinstance(losses, Tensor) else plain(losses)
    if not isinstance(values, list) or len(values) != members:
        raise OptimError("not one loss per member", where=where, got=losses, accepted=f"a tensor [{members}]")
    return values


class Resting:
    """What must not change for a member while others are evaluated: gradients, buffers, random streams."""

    def __init__(self, optimizer: ArrayOptimizer, index: int) -> None:
        array = self.array = optimizer.array
        self.index = index
        self.grads = {n: p.grad[index].clone() for n, p in array.named_parameters() if p.grad is not None}
        self.buffers = [a.data[index].clone() for a in array.buffer_arenas]
        self.streams = dict(array.generators.states[index])
        self.attributes = array.engine.attributes.of(index)

    def restore(self) -> None:
        for name, p in self.array.named_parameters():
            if p.grad is not None and name in self.grads:
                p.grad[self.index].copy_(self.grads[name])
        for arena, row in zip(self.array.buffer_arenas, self.buffers, strict=True):
            arena.data[self.index].copy_(row)
        self.array.generators.keep(self.index, self.streams)
        self.array.engine.attributes.keep(self.index, self.attributes)
