"""Arrays put together anew: members that go on from another array's step beside members that begin.

Refilled slots, merged arrays, warm clones, changed hyperparameters and exploited members of a population are all this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hfta_nb.engine.array.access import know_calls, same_architecture, suits, take_member
from hfta_nb.errors import FusionError
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.train.step.array_step import ArrayStep


@dataclass(frozen=True)
class Origin:
    """The member of a step from which a member goes on.

    Attributes:
        step: of its array, between two whole steps.
        place: its number there.
        consumed: whether nobody uses the step afterwards.
    """

    step: ArrayStep
    place: int
    consumed: bool = False


def recomposed(fresh: ArrayStep, origins: Sequence[Origin | None]) -> ArrayStep:
    """The step of a new array, whose members begin or go on from members of other steps.

    A member that goes on takes parameters, buffers, random streams, optimizer state with its step count, lr schedule,
    loss scale, and the latest losses of phases. It then trains as it would have in its old array: the same numbers up
    to rounding, as another array may run other kernels.

    Args:
        fresh: built for all members, each initialised and seeded as if it began (`Schedule.build`); used up.
        origins: per member of `fresh`, where it goes on from; None for one that begins. Several members may have one
            origin. The old steps are not changed.

    Returns:
        `fresh`.

    Raises:
        FusionError: a member has another architecture than its origin, or there is not one origin per member.
        OptimError: a member has another optimizer than its origin.
    """
    if len(origins) != len(fresh):
        raise FusionError("not one origin per member", where="recomposed", got=len(origins), accepted=str(len(fresh)))
    sources = [origin.step for origin in origins if origin is not None]
    for place, origin in enumerate(origins):
        if origin is not None:
            put_member(fresh, place, origin)
    if sources:
        first = sources[0]
        fresh.count_as(first)
        size, whole = first.array.block_size, len(first)
        if len(fresh) == whole or 1 < size < whole:  # what was found to be fastest
            fresh.array.block_size, fresh.array.threads = min(size, len(fresh)), first.array.threads
        _know_calls(fresh, first)
    return fresh


def _know_calls(fresh: ArrayStep, old: ArrayStep) -> None:
    """Let steps that `old` replays be recorded at once: they are of one kind where all compute the same scores."""
    (_, objective, metrics, *_), (_, known, kept, *_) = fresh.definition, old.definition
    functions = ({name: metric.function for name, metric in found.items()} for found in (metrics, kept))
    if objective == known and next(functions) == next(functions):
        for update, other in zip(fresh.updates, old.updates, strict=True):
            update.score = other.score
        fresh.held_out, fresh.alone = old.held_out, old.alone
        know_calls(fresh.array, old.array)


@torch.no_grad()
def put_member(step: ArrayStep, place: int, origin: Origin) -> None:
    """Let a member go on from where another is, in place: what was recorded of the array stays good.

    Args:
        step: of the array.
        place: of the member that is replaced; its architecture is that of the origin, unless `fits` says that another
            one does as well.
        origin: a member of this step or of another one, of one that has not trained too: a member that begins.

    Raises:
        FusionError: they have different architectures. Nothing has changed then.
        OptimError: they have different optimizers.
    """
    source, src = origin.step, origin.place
    _in_training(step, source)
    take_member(step.array, place, source.array, src, origin.consumed)
    for update, other in zip(step.updates, source.updates, strict=True):
        update.optimizer.take_member(place, other.optimizer, src)
        if update.lr_scheduler is not None and other.lr_scheduler is not None:
            update.lr_scheduler.take_member(place, other.lr_scheduler, src)
        update.take_settings(place, other, src)
    if step.scaler is not None and source.scaler is not None:
        step.scaler.take_member(place, source.scaler, src)
    step.extras.take_member(step.array, place, source.extras, source.array, src)
    for name, losses in source.last.items():
        step.last.setdefault(name, losses.new_zeros(len(step)))[place] = losses[src]


def fits(step: ArrayStep, place: int, origin: Origin) -> bool:
    """Whether `put_member` can put a member there."""
    array, other = step.array, origin.step.array
    _in_training(step, origin.step)
    if same_architecture(array, place, other, origin.place):
        return True
    by_member = any(isinstance(update.optimizer, MemberOptimizer) for update in step.updates)  # of fixed sizes
    return not by_member and suits(array, place, other, origin.place)


def _in_training(*steps: ArrayStep) -> None:
    """Let modules be in the mode in which they train: after a validation they are not."""
    for step in steps:
        if not step.array.training:
            step.array.train()
