"""A member of an array that goes on by another lr schedule."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import lr_scheduler as reference

from hfta_nb.errors import OptimError
from hfta_nb.optim.lr_base import ArrayLRScheduler, Factory, _restore, _values
from hfta_nb.optim.stub_values import pull, push

_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""What `ReduceLROnPlateau` knows of its metric."""


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
        scheduler._members[index],
        scheduler._factories[index],
        scheduler._before[index],
        _values(stub),
    )
    planned = [{**old, **new} for old, new in zip(before, values, strict=True)]
    scheduler._factories[index], scheduler._before[index] = factory, planned
    try:
        _restore(stub, planned)
        scheduler._members[index] = advanced(scheduler._make(index), member)
    except OptimError:
        scheduler._members[index], scheduler._factories[index], scheduler._before[index] = member, made_by, before
        _restore(stub, now)
        raise
    push(scheduler.optimizer)


def advanced(made: reference.LRScheduler, before: reference.LRScheduler) -> reference.LRScheduler:
    """A scheduler that has just been made, as far as another one is; of one that follows a metric, with what that has
    seen. The values that it changes are those of so many steps."""
    if isinstance(made, reference.ReduceLROnPlateau) or isinstance(before, reference.ReduceLROnPlateau):
        seen = {name: value for name, value in vars(before).items() if name in _SEEN}
        vars(made).update(copy.deepcopy(seen))
        return made
    with warnings.catch_warnings():  # torch's own: no optimizer has stepped
        warnings.simplefilter("ignore")
        for _ in range(before.last_epoch):
            made.step()
    return made
