"""Gradients that a program has written into the arena become parameters' `.grad`, or are added to what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hfta_nb.eager.state import ArrayState

T = TypeVar("T")


class Target(NamedTuple):
    """Where the gradient of a parameter goes: the room in its arena.

    Attributes:
        empty: members whose gradient is zero and not written.
        missing: members to note as having none.
    """

    parameter: nn.Parameter
    name: str
    view: Tensor
    empty: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


def delivered(state: ArrayState, targets: Sequence[Target], run: Callable[[], T]) -> T:
    """Run what writes the gradients into the arena, then set or add to `.grad`. After an error all is as before."""
    if all(t.parameter.grad is None for t in targets):
        result = written(targets, run)
    else:
        inside = [t.view for t in targets if same_memory(t.parameter.grad, t.view)]
        before = [view.clone() for view in inside]
        try:
            result = written(targets, run)
        except BaseException:
            _copy(inside, before)
            raise
        if inside:
            torch._foreach_add_(inside, before)
    settle(state, targets)
    return result


def written(targets: Sequence[Target], run: Callable[[], T]) -> T:
    """Run it, the rows that it leaves out being zero."""
    result = run()
    for target in targets:
        for member in target.empty:
            target.view[member].zero_()
    return result


def settle(state: ArrayState, targets: Sequence[Target]) -> None:
    """Make what is in the arena `.grad`, or add it to one that lies elsewhere."""
    noted = state.missing_grads
    for parameter, name, view, _, missing in targets:
        grad = parameter.grad
        if missing or noted:
            before = noted.pop(name, ())
            still = missing if grad is None else [i for i in before if i in missing]
            noted.update({name: list(still)} if still else {})
        if grad is None:
            parameter.grad = view
        elif grad is not view and not same_memory(grad, view):
            with torch.no_grad():
                grad.add_(view)
    if state.engine.architectures is not None:
        with torch.no_grad():
            state.clear_padding([t.name for t in targets])


@torch.no_grad()
def apart(state: ArrayState, targets: Sequence[Target], run: Callable[[], T]) -> tuple[list[Tensor], T]:
    """Run it, and give the gradients in memory of their own, the arena's being as before."""
    before = [arena.grad.clone() for arena in state.arenas]
    try:
        result = written(targets, run)
        return [t.view.clone(memory_format=torch.contiguous_format) for t in targets], result
    finally:
        _copy([arena.grad for arena in state.arenas], before)


def same_memory(grad: Tensor | None, view: Tensor) -> bool:
    """Whether a gradient lies in the arena."""
    return grad is view or (grad is not None and grad.untyped_storage()._cdata == view.untyped_storage()._cdata)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    for room, value in zip(to, source, strict=True):
        room.copy_(value)
