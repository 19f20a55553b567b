"""Delivers gradients that a program has written into the arena: they become `.grad` of parameters, or are added to
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.state import ArrayState

T = TypeVar("T")


class Target(NamedTuple):
    """The destination of a parameter's gradient in its arena.

    Attributes:
        empty: members whose gradient is zero and is not written.
        missing: members that have no gradient.
    """

    parameter: nn.Parameter
    name: str
    view: Tensor
    empty: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


def delivered(state: ArrayState, targets: Sequence[Target], run: Callable[[], T]) -> T:
    """Run a function that writes gradients into the arena, then set or add to `.grad`. An error restores the old
    state."""
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
    assign_grads(state, targets)
    return result


def written(targets: Sequence[Target], run: Callable[[], T]) -> T:
    """Run the function; rows that it does not write are zero."""
    result = run()
    for target in targets:
        for member in target.empty:
            target.view[member].zero_()
    return result


def assign_grads(state: ArrayState, targets: Sequence[Target]) -> None:
    """Make the gradients in the arena `.grad`, or add them to an existing `.grad` elsewhere."""
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
def gradient_copies(state: ArrayState, targets: Sequence[Target], run: Callable[[], T]) -> tuple[list[Tensor], T]:
    """Run the function, return copies of the gradients, and restore the arena."""
    before = [arena.grad.clone() for arena in state.arenas]
    try:
        result = written(targets, run)
        return [t.view.clone(memory_format=torch.contiguous_format) for t in targets], result
    finally:
        _copy([arena.grad for arena in state.arenas], before)


def same_memory(grad: Tensor | None, view: Tensor) -> bool:
    """True if a gradient is stored in the arena."""
    return grad is view or (grad is not None and grad.untyped_storage()._cdata == view.untyped_storage()._cdata)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    for buffer, value in zip(to, source, strict=True):
        buffer.copy_(value)
