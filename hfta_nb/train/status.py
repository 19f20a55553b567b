"""Where a member of a run is, how far it has come, and what values it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.records.events import COMPLETE
from hfta_nb.train.members import begun
from hfta_nb.train.pending_group import Training
from hfta_nb.train.requested import with_values
from hfta_nb.train.schedule import Schedule

TRAINING, PAUSED, BEGUN, WAITING, ENDED = "training", "paused", "begun", "waiting", "ended"
"""Where a member is: in the array that trains; paused; in one that waits and has begun, or has not; none of these."""


def where(trainer: Schedule, run: Training | None, variant: int) -> str:
    """Where a member is.

    Raises:
        StudyError: there is no such variant.
    """
    requested = trainer.requested
    trainer.find(variant)
    if variant in requested.paused or variant in requested.held:
        return PAUSED
    if run is not None and run.trains(variant):
        return TRAINING
    if variant in requested.deleted or variant in trainer.early_stops:
        return ENDED
    if variant in requested.clones:
        return WAITING
    found = next((pending for pending in trainer.waiting if variant in pending.ids), None)
    if found is None:
        return ENDED
    return BEGUN if found.begun else WAITING


def alive(trainer: Schedule, run: Training | None, variant: int, what: str) -> str:
    """Where a member is that has not ended.

    Raises:
        StudyError: it has.
    """
    found = where(trainer, run, variant)
    if found == ENDED:
        raise StudyError("has ended", where=f"{what} #{variant}", remedy=anew(what, ""))
    return found


def anew(what: str, state: str) -> str:
    """What can be done with a member that has ended.

    Args:
        what: was asked of it: "extend", ...
        state: in which it has ended, where that is known.
    """
    remedy = "control.clone(..., warm=False) trains it anew"
    return (
        f"control.extend(epochs) trains all longer; {remedy}"
        if what == "extend" and state in ("", COMPLETE)
        else remedy
    )


def noted(trainer: Schedule, run: Training | None, variant: int, changes: Mapping[str, Any]) -> None:
    """A member has other values from now on."""
    trainer.requested.edits[variant] = {**trainer.requested.edits.get(variant, {}), **changes}
    group, _ = trainer.find(variant)
    group = with_values(group, variant, changes)
    trainer.renew(group)
    if run is not None and run.group.index == group.index:
        run.change(group, variant, changes)


def reached(trainer: Schedule, run: Training | None, variant: int) -> tuple[int, int]:
    """Epochs and steps that a member has done."""
    if run is not None and run.trains(variant):
        return run.reached(variant)
    states = [trainer.requested.paused.get(variant), *(t.run for t in trainer.waiting if variant in t.group.ids)]
    state = next((s for s in states if s is not None), None)
    if state is not None:
        start, first_step = begun(state["members"]).get(variant, (0, 0))
        return int(state["epoch"]) - start, int(state["steps"]) - first_step
    for end in trainer.ended.values():
        if variant in end.members:
            length = trainer.batches(trainer.find(variant)[0]) or 0
            return end.epochs, end.steps or end.epochs * length
    return 0, 0
