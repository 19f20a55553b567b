"""Places of an array that members have left, which others take between two epochs.

A search asks for trials while an array trains. Those that fuse with its members join it: each with its own epochs,
steps, order of data, lr schedule and random streams, so that it trains as it would in an array of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hfta_nb.data import Stream
from hfta_nb.errors import FusionError, MemberError, out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import checkpoint, failures, merging, regrouping
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.joining import Joiner
from hfta_nb.train.step import ArrayStep


def joins(run: Progress) -> bool:
    """Whether members can join this array."""
    if isinstance(run.data, Stream) or any(phase.every > 1 for phase in run.settings.family.phases):
        return False  # a stream is where it is, and phases are due by the steps of the array
    return not run.group.serial and run.trainer.prepare is None and isinstance(run.step, ArrayStep)


def refills(run: Progress) -> bool:
    """Whether members join and leave this array at different times: in a search, and where others have joined it."""
    return joins(run) and (run.settings.slots is not None or any(member.start for member in run.members.all))


def between(run: Progress) -> Iterator[Event]:
    """Between two epochs: let members go that are done, and others join."""
    if refills(run):
        yield from turn(run)
    elif joins(run) and run.settings.population is None:  # which compares members of the same age
        over = not run.members.ids or any(run.left(member) <= 0 for member in run.members.active)
        begun = any(todo.run is not None or todo.end is not None for todo in run.trainer.waiting)
        if begun and not over and regrouping.between_passes(run):
            yield from merging.merge(run, ())
            first = merging.first_to_train(run)
            if first is not None:
                yield from merging.step_aside(run, first)


def turn(run: Progress) -> Iterator[Event]:
    """Between two epochs: let members go that are done or pruned, and others join in their places.

    Those that have begun elsewhere come before those that begin: somebody has asked for them, or waits for them.
    """
    trainer, before = run.trainer, run.group
    trainer.clock.tick()
    done = [m.id for m in run.members.active if run.left(m) <= 0]
    ends = [(set(part), checkpoint.end_of(run, part)) for part in regrouping.begun_together(run, done)]
    for variant in done:
        yield from run.leave([variant], ev.COMPLETE, "", hold=True)
    yield from _asked_to_go(run)
    passed, first = regrouping.between_passes(run), None
    if passed:
        yield from merging.merge(run, done)
        first = merging.first_to_train(run)
    free = Joiner.room(run.settings, run.group) - len(run.members.ids)
    if run.settings.slots is not None and free > 0 and passed and first is None:
        trainer.joiner = Joiner(trainer, run.group, run.members.ids, free)
        try:
            yield ev.SlotsFreed(time.time(), run.group.index, len(run.members.ids), free)
            yield from _join(run, trainer.joiner, done if run.group is before else ())
        finally:
            trainer.joiner = None
    if run.group is before:  # nobody has joined
        left = max(map(run.left, run.members.active), default=0)
        if not regrouping.keeps(run, len(run.members.ids), left):
            run.settle()
        if done:
            kept = run.members.ids
            regrouping.regroup(run, before.half(kept, before.index, before.reason) if kept else None, done)
    for part, end in ends:
        end(next(group.index for group in trainer.arrays if set(group.ids) == part))
    if done or run.group is not before:
        yield ev.PlanMade(time.time(), trainer.records())
    if first is not None:
        yield from merging.step_aside(run, first)


def _asked_to_go(run: Progress) -> Iterator[Event]:
    """Prune and stop members, all at once; other requests wait for the next step."""
    for request in run.trainer.control.poll():
        if isinstance(request, ev.Prune) and request.variant in run.members.ids:
            if request.variant not in run.trainer.pinned:
                yield from run.leave([request.variant], ev.PRUNED, request.reason, hold=True)
        elif isinstance(request, ev.Pin):
            run.trainer.pin(request)
        else:
            run.trainer.control.put(request)  # its member may have ended meanwhile: then it is refused, not raised


def _join(run: Progress, joiner: Joiner, done: Sequence[int]) -> Iterator[Event]:
    """Let those join that wait and fit; one that can't be built is tried alone.

    Args:
        done: members that have just trained to their end.
    """
    while joiner.look():
        places = regrouping.places_of(run, joiner)
        group = joiner.group([v for v in places if v is not None])
        try:
            step = regrouping.step_of(run, joiner, group, places)
        except MemberError as error:
            failing = group.ids[error.member or 0]
            todo = next((todo for todo, variant in joiner.found if variant.id == failing), None)
            if todo is None:
                raise
            failure = failures.noted(run.trainer, failing, error)
        except FusionError as error:  # they train in an array of their own
            why = f"{len(joiner.found)} trials wait for another array: {error.message}"
            yield ev.PhaseChanged(time.time(), run.group.index, "training", why)
            return
        except Exception as error:
            if not out_of_memory(error):
                raise
            return
        else:
            yield from regrouping.joined(run, joiner, group, step, places, done)
            return
        run.trainer.waiting.remove(todo)
        yield from failures.build_without(run.trainer, todo.group, failure)
        joiner = run.trainer.joiner = Joiner(run.trainer, run.group, run.members.ids, joiner.free)
