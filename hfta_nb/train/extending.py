"""Members that train longer than was planned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event, Extend
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.status import ENDED, TRAINING, WAITING, alive, reached, where
from hfta_nb.train.step import ArrayStep, editing


def extend(trainer: Schedule, run: Progress | None, request: Extend) -> Iterator[Event]:
    """Let one member train longer, or all.

    Raises:
        StudyError: the member has ended, or is not there.
    """
    requested, variant, more = trainer.requested, request.variant, request.epochs
    if variant is not None:
        found = alive(trainer, run, variant, "extend")
        requested.budgets[variant] = trainer.budget(variant) + more
        if found == TRAINING:
            _replan(trainer, run, [variant])
        elif found != WAITING:
            requested.change(variant, ())
        yield _longer(trainer, run, variant)
        return
    if trainer.owner is None:
        raise StudyError("nothing takes it in", where="extend")
    epochs = trainer.settings.epochs + more
    trainer.owner.extend(epochs)
    trains = [v for g in trainer.arrays for v in g.ids if where(trainer, run, v) != ENDED]
    ended = trainer.extend(epochs)
    for one in requested.budgets:
        requested.budgets[one] += more
        requested.change(one, ())
    for beside in [] if run is None else run.together():
        _replan(trainer, beside, beside.members.ids)
    for variant in trains:
        yield _longer(trainer, run, variant)
    for end in ended:
        for variant in end.members:
            if variant not in requested.deleted:
                yield ev.MemberChanged(time.time(), variant, ev.WAITING, f"to train on to epoch {epochs}")
                yield _longer(trainer, run, variant)


def _longer(trainer: Schedule, run: Progress | None, variant: int) -> ev.MemberEdited:
    changes: dict[str, Any] = {"epochs": trainer.budget(variant)}
    epoch, step = reached(trainer, run, variant)
    return ev.MemberEdited(time.time(), variant, "extended", None, True, epoch, step, changes, "by request")


def _replan(trainer: Schedule, run: Progress | None, variants: list[int]) -> None:
    """Let the lr schedules of members that train span what they are to train now."""
    assert run is not None  # they are in an array that trains
    for variant in variants:
        at = run.members.ids.index(variant)
        span = trainer.span(run.group, variant)
        editing.set_values(run.step, run.rows[at], run.members.active[at].row, span)
    if isinstance(run.step, ArrayStep):
        steps = float(run.budget * (run.length or 0))
        run.step.plan(run.settings.compiling, steps, brief=run.settings.slots is None)
