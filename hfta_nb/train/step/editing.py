"""Hyperparameters of one member, changed between two steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hfta_nb import optim
from hfta_nb.errors import OptimError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.models.phases import OWN_AXES, Phase
from hfta_nb.models.training_axes import LR_SCHEDULERS, OPTIMIZERS, TRAINING_AXES, Choice
from hfta_nb.optim import member_values
from hfta_nb.train.step.array_step import ArrayStep
from hfta_nb.train.step.choices import beside, by_step, factory_of, optimizer_of
from hfta_nb.train.step.graph import graph_of
from hfta_nb.train.step.optimizers import limits_of
from hfta_nb.train.step.parameter_groups import groups_of, values_of
from hfta_nb.train.step.plain import PlainStep
from hfta_nb.train.step.step_protocol import Row, Step


def _axes_of(choices: Mapping[str, Choice]) -> list[str]:
    used = {axis for choice in choices.values() for axis in choice.axes}
    return [axis for axis in TRAINING_AXES if axis in used]


OPTIMIZER_AXES = ("lr", *_axes_of(OPTIMIZERS), "max_norm")
SCHEDULE_AXES = ("warmup_steps", *_axes_of(LR_SCHEDULERS))

Values = list[dict[str, Any]]
"""Of each group of an optimizer, its hyperparameters."""


class Span(NamedTuple):
    """How long a member trains: epochs, and how many steps each has, where that is known."""

    epochs: int
    length: int | None


def changeable(phases: Sequence[Phase] = ()) -> tuple[str, ...]:
    """The axes whose values can be changed while a member trains.

    Args:
        phases: of the family, each of which may have axes of its own.
    """
    own = [f"{phase.name}_{name}" for phase in phases for name in OWN_AXES]
    return (*OPTIMIZER_AXES, *own, *SCHEDULE_AXES)


def check(old: Row, row: Row, span: Span) -> None:
    """See that a member of one row can go on as one of another.

    Raises:
        OptimError: the optimizer or lr scheduler does not take the values, or the lr would go on at other times.
    """
    if by_step(row) != by_step(old):
        raise OptimError("the lr would go on with every step instead of every epoch, or the other way round",
                         where="warmup_steps", got=row.get("warmup_steps"), remedy="clone the member")  # fmt: skip
    name, given = optimizer_of(row)
    try:
        made = getattr(optim, name).torch_class([nn.Parameter(torch.zeros(1, 1))], **given)
        factory = factory_of(row, *span)
        if factory is not None:
            factory(made)
    except (TypeError, ValueError, ZeroDivisionError, KeyError) as error:
        raise OptimError(str(error), where=name, got=given) from error


def set_values(step: Step, place: int, row: Row, span: Span, changed: Sequence[str] = ()) -> None:
    """A member goes on with other hyperparameters; its lr schedule as if it had been planned with them.

    Args:
        step: of the member.
        place: of the member, in the array.
        row: the values of all its training axes.
        span: of its training.
        changed: axes whose values are new. A schedule that follows a metric has no plan: its lr is left alone unless it
            is among them.

    Raises:
        OptimError: the optimizer or lr scheduler does not take the values. Nothing has changed then.
    """
    if isinstance(step, PlainStep):
        _set_plain(step, row, span, changed)
    elif isinstance(step, ArrayStep):
        _set_in_array(step, place, row, span, changed)
    else:
        raise OptimError("hyperparameters can't be changed while it trains", where=type(step).__name__)


def _rows(step: ArrayStep | PlainStep, row: Row) -> list[Row]:
    """The row of each update."""
    kinds = [(update.phase, update.follows) for update in step.updates]
    rows = [(row if phase is None else phase.row(row), follows) for phase, follows in kinds]
    return [(beside(own) if follows else None) or own for own, follows in rows]


def _values(module: nn.Module, names: Sequence[Sequence[str]], row: Row) -> Values:
    """What an optimizer's groups would have for a member of this row."""
    _, given = optimizer_of(row)
    groups = groups_of(module, [name for listed in names for name in listed], row)
    return [{**given, **values_of(own, given)} for _, own in groups]


# In an array.


def _set_in_array(step: ArrayStep, place: int, row: Row, span: Span, changed: Sequence[str]) -> None:
    rows = _rows(step, row)
    undo: list[Callable[[], None]] = []
    try:
        for update, own in zip(step.updates, rows, strict=True):
            optimizer, scheduler = update.optimizer, update.lr_scheduler
            undo.append(member_values.kept(optimizer))
            values = _values(step.array, member_values.groups_of(optimizer), own)
            if scheduler is None:
                member_values.put_values(optimizer, place, values)
            else:
                member = scheduler.members[place]
                if isinstance(member, ReduceLROnPlateau) and not _has_lr(changed):
                    values = [{**v, "lr": optimizer.rows(k, "lr")[place]} for k, v in enumerate(values)]
                factory = factory_of(own, *span)
                assert factory is not None  # it has one now, and lr_scheduler is not changeable
                member_values.replan_member(scheduler, place, factory, values)
            member_values.check_values(optimizer)
    except OptimError:
        for restore in reversed(undo):
            restore()
        raise
    _set_limits(step, place, rows)


def _set_limits(step: ArrayStep, place: int, rows: Sequence[Row]) -> None:
    """To what norm the member's gradients are clipped from now on."""
    for update, own in zip(step.updates, rows, strict=True):
        limit = None if update.follows else own.get("max_norm")
        if update.limits is None and limit is not None:
            device = step.array.generators.device
            update.limits = limits_of([{"max_norm": math.inf}] * len(step), device)
            step.graph, step.fast_path = graph_of(step.array, step.tensors), None  # what was captured does not clip
        if update.limits is not None:
            update.limits[place] = math.inf if limit is None else float(limit)


# Of a plain module.


def _set_plain(step: PlainStep, row: Row, span: Span, changed: Sequence[str]) -> None:
    names = {id(p): name for name, p in step.module.named_parameters()}
    found = []
    for update, own in zip(step.updates, _rows(step, row), strict=True):
        optimizer, scheduler = update.optimizer, update.lr_scheduler
        values = _values(step.module, [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups], own)
        before = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        if isinstance(scheduler, ReduceLROnPlateau) and not _has_lr(changed):
            values = [{**v, "lr": old["lr"]} for v, old in zip(values, before, strict=True)]
        try:
            _check(optimizer, values)
            made = None if scheduler is None else _planned(optimizer, scheduler, factory_of(own, *span), values)
        except (TypeError, ValueError, ZeroDivisionError, KeyError) as error:
            for group, old in zip(optimizer.param_groups, before, strict=True):
                group.update(old)
            raise OptimError(str(error), where=type(optimizer).__name__, got=values) from error
        found.append((made, values, None if update.follows else own.get("max_norm")))
    for update, (made, values, limit) in zip(step.updates, found, strict=True):
        if made is None:
            for group, new in zip(update.optimizer.param_groups, values, strict=True):
                group.update(new)
        update.lr_scheduler, update.limit = made, limit


def _check(optimizer: torch.optim.Optimizer, values: Values) -> None:
    """Let torch's constructor look at the values."""
    type(optimizer)([{"params": [nn.Parameter(torch.zeros(1, 1))], **group} for group in values])  # type: ignore[call-arg]


_SCHEDULED = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
"""What torch's schedulers leave in an optimizer's groups."""


def _planned(optimizer: torch.optim.Optimizer, before: Any, factory: Any, values: Values) -> Any:
    """torch's scheduler with these values, brought as far as the one before."""
    for group, new in zip(optimizer.param_groups, values, strict=True):
        for name in _SCHEDULED:
            group.pop(name, None)
        group.update(new)
    with caught_warnings():  # torch's own: it has stepped, by the scheduler before
        warnings.simplefilter("ignore")
        return member_values.advanced(factory(optimizer), before)


def _has_lr(changed: Sequence[str]) -> bool:
    return any(name == "lr" or name.endswith("_lr") for name in changed if name != "min_lr")
