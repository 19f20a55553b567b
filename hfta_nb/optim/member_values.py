"""Hyperparameters and lr schedule of one member of an array, changed between two steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import lr_scheduler as reference

from hfta_nb.errors import OptimError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.optim.lr_base import ArrayLRScheduler, Factory
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.stub_values import pull, push, restore, take_seen, values_of


def groups_of(optimizer: ArrayOptimizer) -> list[list[str]]:
    """By group, the names of its parameters."""
    return [list(names) for names in optimizer._names]


def put_values(optimizer: ArrayOptimizer, index: int, values: Sequence[Mapping[str, Any]]) -> None:
    """Let a member have these hyperparameters, group by group, from the next step on."""
    for k, group in enumerate(values):
        for name, value in group.items():
            column = optimizer.rows(k, name)
            column[index] = value
            optimizer.param_groups[k][name] = column


def check_values(optimizer: ArrayOptimizer) -> None:
    """See that the optimizer takes the values that its members have now.

    Raises:
        OptimError: it does not.
    """
    for names, values in zip(optimizer._names, optimizer.read(), strict=True):
        optimizer.check(values, optimizer._shapes(names), type(optimizer).__name__)


def kept(optimizer: ArrayOptimizer) -> Callable[[], None]:
    """What puts an optimizer's hyperparameters back, and the lr schedule of each member."""
    groups = [{k: copy.copy(v) for k, v in group.items()} for group in optimizer.param_groups]
    books = [(s, list(s.members), list(s._factories), list(s._before)) for s in optimizer.schedulers()]

    def restore() -> None:
        for group, old in zip(optimizer.param_groups, groups, strict=True):
            for name in [name for name in group if name not in old]:
                del group[name]
            group.update(old)
        for scheduler, members, factories, before in books:
            scheduler.members, scheduler._factories, scheduler._before = members, factories, before

    return restore


def replan_member(
    scheduler: ArrayLRScheduler, index: int, factory: Factory, values: Sequence[Mapping[str, Any]]
) -> None:
    """Let a member go on by another schedule, as far as it has come by the one before.

    Args:
        scheduler: of the array.
        index: the member.
        factory: makes torch's scheduler of its optimizer.
        values: of each of the optimizer's groups, as they would have been before the first step.

    Raises:
        OptimError: torch's scheduler does not take its settings. Nothing has changed then.
    """
    stub = pull(scheduler.optimizer)[index]
    member, made_by, before, now = (
        scheduler.members[index],
        scheduler._factories[index],
        scheduler._before[index],
        values_of(stub),
    )
    planned = [{**old, **new} for old, new in zip(before, values, strict=True)]
    scheduler._factories[index], scheduler._before[index] = factory, planned
    try:
        restore(stub, planned)
        scheduler.members[index] = advanced(scheduler._make(index), member)
    except OptimError:
        scheduler.members[index], scheduler._factories[index], scheduler._before[index] = member, made_by, before
        restore(stub, now)
        raise
    push(scheduler.optimizer)


def advanced(made: reference.LRScheduler, before: reference.LRScheduler) -> reference.LRScheduler:
    """A scheduler that has just been made, as far as another one is; one that follows a metric takes what that has seen
    of it. The values that it changes are those of so many steps."""
    if isinstance(made, reference.ReduceLROnPlateau):
        take_seen(made, before)
        return made
    with caught_warnings():  # torch's own: no optimizer has stepped
        warnings.simplefilter("ignore")
        for _ in range(before.last_epoch):
            made.step()
    return made
