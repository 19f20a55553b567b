"""Members that are taken out of an array that trains, with all that they need to go on in another one."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.step.rollback import on_host

State = Mapping[str, Any]


def part(run: Progress, ids: Sequence[int], why: str) -> tuple[Group, State | None]:
    """The array that these members of an array would be, and how far they are; None where they have not begun.

    In a deterministic study they are where they begin, so that their array will have as many rows as this one.
    """
    index, begun = run.trainer.free_index, run.stage != "building" or run.resume is not None
    if not (begun or run.settings.deterministic):
        return run.group.part(ids, index, why), None
    return replace(run.group.half(ids, index, why), fitted=True), on_host(run.state(ids))


def set_aside(
    run: Progress, ids: Sequence[int], state: str, reason: str, why: str
) -> Generator[Event, None, tuple[Group, State | None]]:
    """Members leave for an array of their own, which waits for nobody yet.

    Args:
        run: of the array that they leave.
        ids: the members.
        state: that they enter.
        reason: of the state.
        why: they are not in the array any more.

    Returns:
        Their array, and how far it is.
    """
    whole, trainer = run.group, run.trainer
    own, told = part(run, ids, why)
    kept = {v: weights for v, weights in run.members.unsaved().items() if v in ids or isinstance(v, str)}
    yield from run.leave(ids, state, reason)
    run.members.departed |= kept
    for variant in ids:
        run.members.drop(variant)
    others = [v for v in whole.ids if v not in ids]
    if others:
        run.group = whole.half(others, whole.index, whole.reason)
    trainer.replace(whole, [*([run.group] if others else []), own])
    run.probe = None
    yield ev.PlanMade(time.time(), trainer.records())
    return own, told


def find(trainer: Schedule, run: Progress | None, variant: int) -> tuple[Group, int]:
    """A variant's array, and its place there.

    Raises:
        StudyError: there is no such variant.
    """
    groups = [*trainer.arrays, *([] if run is None else [run.group])]  # all members may have left that one
    for group in groups:
        if variant in group.ids:
            return group, group.ids.index(variant)
    most = max(v for g in groups for v in g.ids)
    raise StudyError("no such variant", got=variant, accepted=f"0 to {most}")


def renew(trainer: Schedule, run: Progress | None, group: Group) -> None:
    """Put an array with changed values in the place of the one of its number."""
    if any(g.index == group.index for g in trainer.arrays):
        trainer.replace(group, [group])
    for place, todo in enumerate(trainer.waiting):
        if todo.group.index == group.index:
            trainer.waiting[place] = replace(todo, group=group)
    if run is not None and run.group.index == group.index:
        run.group = group
