"""A member whose own code raises: the others train on without it, and it is tried again alone, as a plain module."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hfta_nb.errors import DataError, HftaError, MemberError, StoreError, out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.step import ArrayStep, PlainStep

_WHOLE = "(Long|Int|Short|Char|Byte|Bool)"
_REMEDIES = {
    "more than 1 value per channel when training": (
        "leave out a last mini-batch of one sample (drop_last=True), or choose another batch_size"
    ),
    f"dtype.* got {_WHOLE} and|Input type \\(.*{_WHOLE}Tensor|expected .*scalar type .* {_WHOLE}|for '{_WHOLE}'": (
        "whole numbers reach a layer of floating-point numbers: give x.float(), or astype('float32') of a table"
    ),
}
"""By a pattern of what torch says, what helps."""


@dataclass(frozen=True)
class Failure:
    """What a member's own code has raised.

    Attributes:
        variant: of the member.
        reason: the error in words.
        detail: its traceback.
    """

    variant: int
    reason: str
    detail: str


def failure_of(run: Progress, error: Exception) -> Failure | None:
    """What a member of an array that trains has raised; None where the error is not one member's.

    An array whose optimizers have stepped can't go on without that member: the others would step twice.
    """
    if out_of_memory(error) or not run.whole:
        return None
    place = error.member if isinstance(error, MemberError) else None
    if isinstance(run.step, PlainStep) and not isinstance(error, DataError | StoreError):
        place = 0
    elif not isinstance(run.step, ArrayStep):
        return None
    if place is None:
        return None
    return noted(run.trainer, run.row_ids[place], error)


def of_nobody(run: Progress, error: Exception) -> bool:
    """Whether a row has raised that is no member's: it goes, or is a copy of a member from now on.

    A copy that raises as well before it has made a step does what that member would do.
    """
    place = error.member if isinstance(error, MemberError) else None
    if place is None or place in run.rows or not run.whole:
        return False
    if not run.settings.deterministic:
        run.settle()
    elif (whose := run.row_ids[place]) in run.members.ids and run.just_filled:
        return False
    else:
        rows = dict(zip(run.members.ids, run.rows, strict=True))
        shape = _arguments(run, whose)  # of an array of unlike members, each architecture is there as long as it can be
        alike = (row for variant, row in rows.items() if _arguments(run, variant) == shape)
        run.fill(place, rows[whose] if whose in rows else next(alike, run.rows[0]))
    return True


def _arguments(run: Progress, variant: int) -> Mapping[str, Any]:
    group, place = run.trainer.find(variant)
    return group.arguments[place]


def unbuilt(trainer: Schedule, group: Group, error: Exception) -> Failure | None:
    """The same, of an array that is not built yet."""
    place = error.member if isinstance(error, MemberError) else None
    return None if place is None else noted(trainer, group.ids[place], error)


def noted(trainer: Schedule, variant: int, error: Exception) -> Failure:
    """An error in words; the first one is kept, to be raised should no member succeed."""
    cause = error.__cause__ if isinstance(error, MemberError) and isinstance(error.__cause__, Exception) else error
    message = cause.message if isinstance(cause, HftaError) else str(cause)
    reason = " ".join(f"{type(cause).__name__}: {message}".split())
    remedy = next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, message)), "")
    if remedy and isinstance(error, MemberError) and not error.remedy:
        error.remedy, error.args = remedy, (f"{error.message}; {remedy}",)
        reason = f"{reason}; {remedy}"
    detail = "".join(traceback.format_exception(error))
    if trainer.error is None:
        trainer.error = error
        for one in {id(e): e for e in (error, cause)}.values():  # their frames hold tensors
            traceback.clear_frames(one.__traceback__)
    return Failure(variant, reason, detail)


def leave_out(run: Progress, failure: Failure) -> Iterator[Event]:
    """The array that trains goes on without the member, from where it is."""
    group, variant = run.group, failure.variant
    if group.serial:
        yield from run.leave([variant], ev.FAILED, failure.reason, failure.detail)
        return
    yield from run.leave([variant], ev.WAITING, f"to be tried alone: {failure.reason}", failure.detail)
    alone = _alone(run.trainer, group, failure)
    yield from run.part_with(alone)
    run.trainer.put_last(alone)


def build_without(trainer: Schedule, group: Group, failure: Failure) -> Iterator[Event]:
    """An array is to be built without the member."""
    if group.serial:
        yield ev.MemberChanged(time.time(), failure.variant, ev.FAILED, failure.reason, failure.detail)
        yield from trainer.save_after(group, {})
        return
    others = [v for v in group.ids if v != failure.variant]
    parts, alone = [group.part(others, group.index, group.reason)] if others else [], _alone(trainer, group, failure)
    trainer.replace(group, [*parts, alone])
    trainer.put_last(alone)
    trainer.put_first(parts, [None] * len(parts))
    yield ev.PlanMade(time.time(), trainer.records())


def _alone(trainer: Schedule, group: Group, failure: Failure) -> Group:
    """The array of the member alone, as a plain module; it trains after all arrays that wait."""
    part = group.part([failure.variant], trainer.free_index, f"not with array {group.index}: {failure.reason}")
    return replace(part, serial=True, fitted=True, likes=(), architectures=1, padding=0.0)
