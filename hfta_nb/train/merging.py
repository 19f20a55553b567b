"""Two arrays that have both begun become one: the members of one that waits join the one that trains.

Arrays that have begun wait for another one where a paused member was resumed, where a clone did not fuse with its
source, where memory has halved an array, and where members that were done train on. Each member keeps its
epochs, steps, order of data, optimizer state, lr schedule, random streams and best value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hfta_nb.errors import HftaError, StoreError, out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import checkpoint, recording_cost, regrouping, steering
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.joining import Joiner
from hfta_nb.train.plan import Group
from hfta_nb.train.step import ArrayStep, Origin
from hfta_nb.train.step.rollback import on_host
from hfta_nb.train.todo import Todo
from hfta_nb.train.whereabouts import begun


def merge(run: Progress, done: Sequence[int]) -> Iterator[Event]:
    """Let arrays join that have begun, wait between two epochs, fuse with this one and fit.

    Args:
        run: the array, between two passes through the data.
        done: members that have just trained to their end.
    """
    for todo in list(run.trainer.waiting):
        if not _between_epochs(todo) or (joiner := _joiner(run, todo)) is None:
            continue
        run.apart.add(todo.group.index)
        found = _combined(run, joiner)
        if found is not None:
            yield from _merged(run, joiner, *found, done)
            done = ()


def first_to_train(run: Progress) -> Todo | None:
    """An array that waits in the middle of an epoch and can join this one after that epoch, if that is worth building
    this one again."""
    trainer = run.trainer
    if not run.members.ids or run.settings.steps_per_epoch is not None:
        return None
    mine = max(map(run.left, run.members.active))
    for todo in trainer.waiting:
        if todo.run is None or _between_epochs(todo):
            continue
        starts = {variant: begun(todo.run["members"], variant)[0] for variant in todo.run["ids"]}
        done = int(todo.run["epoch"]) + 1
        left = max(trainer.budget(variant) - (done - start) for variant, start in starts.items())
        if min(mine, left) * (run.length or 0) >= recording_cost.STEPS and _joiner(run, todo) is not None:
            return todo
    return None


def step_aside(run: Progress, first: Todo) -> Iterator[Event]:
    """Let another array train to the end of its epoch, where this one joins it."""
    trainer, state = run.trainer, on_host(run.state())
    trainer.unsaved |= on_host(run.members.unsaved())
    trainer.withdraw(first)
    trainer.put_first([first.group, run.group], [first.run, state])
    run.aside = True
    for variant in run.members.ids:
        why = f"to join array {first.group.index} at the end of its epoch"
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, why)


def _between_epochs(todo: Todo) -> bool:
    """Whether an array has begun and is between two epochs."""
    if todo.run is None:
        return todo.end is not None
    return not (int(todo.run["batch"]) or todo.run.get("ending", False))


def _members(todo: Todo) -> list[int]:
    """The members of an array that has begun."""
    if todo.run is not None:
        return list(todo.run["ids"])
    return [] if todo.end is None else todo.end.members


def _joiner(run: Progress, todo: Todo) -> Joiner | None:
    """The members of an array that waits as those that may join; None where not all that still train can."""
    trainer = run.trainer
    ids = [v for v in _members(todo) if v not in trainer.early_stops | trainer.asked.deleted]
    free = Joiner.room(run.settings, run.group) - len(run.members.ids)
    if not run.members.ids or not 0 < len(ids) <= free or todo.group.serial or todo.group.index in run.apart:
        return None
    both = (tuple(run.members.ids), tuple(ids))
    if run.unlike.get(todo.group.index) == both:  # as was found after an epoch before: looking takes a while
        return None
    joiner = Joiner(trainer, run.group, run.members.ids, free)
    if joiner.take(todo, ids):
        return joiner
    run.unlike[todo.group.index] = both
    return None


def _combined(run: Progress, joiner: Joiner) -> tuple[Progress, Group, ArrayStep, list[int | None]] | None:
    """The other array, and the group, the step and the places of both together; None where they can't be built."""
    trainer, todo = run.trainer, joiner.found[0][0]
    changed = {variant: list(names) for variant, names in trainer.asked.changed.items()}
    try:
        opened = trainer.opened(todo)
        trainer.withdraw(todo, opened)
        joiner.found = [(opened, variant) for _, variant in joiner.found]
        other = Progress(trainer, opened.group, opened.run)
        try:
            checkpoint.build(other)
        finally:
            other.source.close()
        if regrouping.between_passes(other) and isinstance(other.step, ArrayStep):
            places = regrouping.places_of(run, joiner)
            group = joiner.group([variant for variant in places if variant is not None])
            ids = {variant.id for _, variant in joiner.found}
            there = zip(other.members.ids, other.rows, strict=True)
            origins = {v: Origin(other.step, row) for v, row in there if v in ids}
            return other, group, regrouping.step_of(run, joiner, group, places, origins), places
    except Exception as error:  # they train one after another, as they would have
        if isinstance(error, StoreError) or not (out_of_memory(error) or isinstance(error, HftaError)):
            raise
    trainer.asked.changed = changed
    return None


def _merged(
    run: Progress,
    joiner: Joiner,
    other: Progress,
    group: Group,
    step: ArrayStep,
    places: Sequence[int | None],
    done: Sequence[int],
) -> Iterator[Event]:
    """Go on with the step of both arrays."""
    trainer = run.trainer
    yield from regrouping.joined(run, joiner, group, step, places, done)
    pages = {page.id: page for page in other.members.active}
    for mine in run.members.all:
        if mine.id in pages:
            page = pages[mine.id]
            mine.best_value, mine.best_epoch, mine.waited = page.best_value, page.best_epoch, page.waited
            mine.start = page.start + run.epoch - other.epoch
            mine.first_step = page.first_step + run.steps - other.steps
            mine.first_pass = page.first_pass + run.pass_ - other.pass_
            mine.begin_s = page.begin_s
    stopped = sorted(trainer.early_stops & set(other.members.ids))
    other.keep_last(stopped)
    run.members.departed |= other.members.unsaved()
    yield ev.PlanMade(time.time(), trainer.records())
    for variant in stopped:
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, "stopped by request")
    yield from steering.before(run)
    yield from steering.begun(run)
