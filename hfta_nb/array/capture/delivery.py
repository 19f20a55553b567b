"""Gradients that a program has written into the arena become parameters' `.grad`, or are added to what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray

T = TypeVar("T")


class Target(NamedTuple):
    """Where the gradient of a parameter goes: the room in its arena."""

    parameter: nn.Parameter
    name: str
    view: Tensor


def targets_of(array: FusedArray, names: Sequence[str]) -> list[Target]:
    """The targets by name."""
    named = dict(array.named_parameters())
    return [Target(named[n], n, array.arena_of(n).grad_view(n)) for n in names]


@torch.no_grad()
def delivered(array: FusedArray, targets: Sequence[Target], run: Callable[[], T]) -> T:
    """Run what writes the gradients into the arena, then set or add to `.grad`. After an error all is as before."""
    held = [t for t in targets if t.parameter.grad is not None]
    if not held:
        result = run()
    else:
        inside = [t.view for t in held if same_memory(t.parameter.grad, t.view)]
        before = [view.clone() for view in inside]
        try:
            result = run()
        except BaseException:
            _copy(inside, before)
            raise
        for target in held:
            grad = target.parameter.grad
            if grad is not None and not same_memory(grad, target.view):
                grad.add_(target.view)
        if inside:
            torch._foreach_add_(inside, before)
    missing = array.missing_grads
    for parameter, name, view in targets:
        if missing:
            missing.pop(name, None)
        if parameter.grad is None:
            parameter.grad = view
    if array.engine.across is not None:
        array.padding.clear(array, [t.name for t in targets])
    return result


@torch.no_grad()
def apart(array: FusedArray, targets: Sequence[Target], run: Callable[[], T]) -> tuple[list[Tensor], T]:
    """Run it, and give the gradients in memory of their own, the arena's being as before."""
    before = [arena.grad.clone() for arena in array.arenas]
    try:
        result = run()
        return [t.view.clone(memory_format=torch.contiguous_format) for t in targets], result
    finally:
        _copy([arena.grad for arena in array.arenas], before)


def same_memory(grad: Tensor | None, view: Tensor) -> bool:
    """Whether a gradient lies in the arena."""
    return grad is view or (grad is not None and grad.untyped_storage()._cdata == view.untyped_storage()._cdata)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    for room, value in zip(to, source, strict=True):
        room.copy_(value)
