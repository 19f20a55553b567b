"""Places of an array that members have left, which others take between two epochs.

A search asks for trials while an array trains. Those that fuse with its members join it: each with its own epochs,
steps, order of data, lr schedule and random streams, so that it trains as it would in an array of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hfta_nb import events as ev
from hfta_nb.data import Stream
from hfta_nb.errors import FusionError, MemberError, out_of_memory
from hfta_nb.events import Event
from hfta_nb.plan import Group
from hfta_nb.step import ArrayStep, Origin, put_member, recomposed
from hfta_nb.step.recompose import fits
from hfta_nb.train import checkpoint, failures
from hfta_nb.train.joining import Joiner, taken_off
from hfta_nb.train.members import MemberRecord
from hfta_nb.train.progress import Progress

ALPHA = 0.8
"""An array of which a smaller share of the places is taken is cut down to its members, unless it soon ends."""

WORTH = 100.0
"""Steps of the array that recording its steps anew costs, about."""


def refills(run: Progress) -> bool:
    """Whether members may join this array."""
    s = run.settings
    if s.slots is None or isinstance(run.data, Stream) or any(phase.every > 1 for phase in s.family.phases):
        return False  # a stream is where it is, and phases are due by the steps of the array
    return not run.group.serial and run.trainer.prepare is None and isinstance(run.step, ArrayStep)


def turn(run: Progress) -> Iterator[Event]:
    """Between two epochs: let members go that are done or pruned, and others join in their places."""
    trainer, before = run.trainer, run.group
    done = [m.id for m in run.members.active if run.left(m) <= 0]
    end = checkpoint.end_of(run, done) if done else None
    for variant in done:
        yield from run.leave([variant], ev.COMPLETE, "", hold=True)
    yield from _asked_to_go(run)
    free = Joiner.room(run.settings, before) - len(run.members.ids)
    if free > 0 and _between_passes(run):
        trainer.joiner = Joiner(trainer, before, run.members.ids, free)
        try:
            yield ev.SlotsFreed(time.time(), before.index, len(run.members.ids), free)
            yield from _join(run, trainer.joiner, done)
        finally:
            trainer.joiner = None
    if run.group is before:  # nobody has joined
        left = max(map(run.left, run.members.active), default=0)
        if not _keeps(run, len(run.members.ids), left):
            run.settle()
        if done:
            kept = run.members.ids
            _regroup(run, before.half(kept, before.index, before.reason) if kept else None, done)
    if end is not None:
        end(next(group.index for group in trainer.arrays if set(group.ids) == set(done)))
    if done or run.group is not before:
        yield ev.PlanMade(time.time(), trainer.records())


def _keeps(run: Progress, members: int, left: int) -> bool:
    """Whether places that nobody takes stay in the array: to cut it down, its steps are recorded anew.

    Args:
        members: that go on.
        left: epochs that one of them still trains, at most.
    """
    s, places = run.settings, len(run.step)
    if not members or s.deterministic or s.strategy != "measured":  # as wide as a run that is interrupted
        return False
    return members >= ALPHA * places or (places - members) * left * (run.length or 0) < WORTH * places


def _asked_to_go(run: Progress) -> Iterator[Event]:
    """Prune and stop members, all at once; other requests wait for the next step."""
    for request in run.trainer.control.poll():
        if isinstance(request, ev.Prune) and request.variant in run.members.ids:
            if request.variant not in run.trainer.pinned:
                yield from run.leave([request.variant], ev.PRUNED, request.reason, hold=True)
        elif isinstance(request, ev.Pin):
            run.trainer.pin(request)
        else:
            run.trainer.control.post(request)


def _between_passes(run: Progress) -> bool:
    """Whether all members are at the beginning of a pass through the data, where others can begin."""
    if run.place and run.place == run.source.length:  # the next batch would find it out
        run.pass_, run.place, run._stream = run.pass_ + 1, 0, None
    return not run.place


def _join(run: Progress, joiner: Joiner, done: Sequence[int]) -> Iterator[Event]:
    """Let those join that wait and fit; one that can't be built is tried alone.

    Args:
        done: members that have just trained to their end.
    """
    while joiner.look():
        places = _places(run, joiner)
        group = joiner.group([v for v in places if v is not None])
        try:
            step = _step(run, joiner, group, places)
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
            yield from _joined(run, joiner, group, step, places, done)
            return
        run.trainer.waiting.remove(todo)
        yield from failures.build_without(run.trainer, todo.group, failure)
        joiner = run.trainer.joiner = Joiner(run.trainer, run.group, run.members.ids, joiner.free)


def _places(run: Progress, joiner: Joiner) -> list[int | None]:
    """The variants of the array with those that join, each in a place that was left, as far as there are such; None for
    one that nobody takes.

    One of the architecture that was there comes first: it can be put in its place.
    """
    places: list[int | None] = [None] * len(run.step)
    for variant, row in zip(run.members.ids, run.rows, strict=True):
        places[row] = variant
    shapes = {id: repr(a) for id, a in zip(run.group.ids, run.group.arguments, strict=True)}
    joins = {variant.id: repr(joiner.arguments(todo, variant)) for todo, variant in joiner.found}
    for place, variant in enumerate(run.members.ids if run._rows is None else run.held):
        like = next((v for v, shape in joins.items() if shape == shapes.get(variant)), None)
        if places[place] is None and like is not None:
            places[place] = like
            del joins[like]
    for place, taken in enumerate(places):
        if taken is None and joins:
            places[place] = next(iter(joins))
            del joins[next(iter(joins))]
    return [*places, *joins]


def _step(run: Progress, joiner: Joiner, group: Group, places: Sequence[int | None]) -> ArrayStep:
    """The step of the array with those that join: in place where their places are as they need them.

    Raises:
        MemberError: one can't be built; its number is that of the group.
    """
    old, new = run.step, [variant.id for _, variant in joiner.found]
    assert isinstance(old, ArrayStep)  # as `refills` has seen
    kept = dict(zip(run.members.ids, run.rows, strict=True))
    full = None not in places or _keeps(run, len(group.ids), run.trainer.settings.epochs)
    if len(places) == len(old) and full:
        part = replace(group.part(new, group.index, ""), likes=())
        fresh = _built(run, part, group)
        origins = {places.index(id): Origin(fresh, place) for place, id in enumerate(part.ids)}
        if all(fits(old, place, origin) for place, origin in origins.items()):
            for place, origin in origins.items():
                put_member(old, place, origin)
            return old
    made = _built(run, group, group)
    return recomposed(made, [Origin(old, kept[v]) if v in kept else None for v in group.ids])


def _built(run: Progress, part: Group, group: Group) -> ArrayStep:
    try:
        made = run.trainer.build(part)
    except MemberError as error:
        raise error.of(group.ids.index(part.ids[error.member or 0])) from error.__cause__
    assert isinstance(made, ArrayStep)  # the group is not serial
    return made


def _joined(
    run: Progress, joiner: Joiner, group: Group, step: ArrayStep, places: Sequence[int | None], done: Sequence[int]
) -> Iterator[Event]:
    """Go on with the step of the new array."""
    trainer, new, in_place = run.trainer, [variant.id for _, variant in joiner.found], step is run.step
    taken_off(trainer, joiner.found)
    taken = [row for row, variant in enumerate(places) if variant is not None]
    run.step, run._rows = step, taken if in_place and len(taken) < len(step) else None
    step.due = run._rows
    if in_place:
        run.held = [before if v is None else v for before, v in zip(run.held, places, strict=True)]
        group = replace(group, likes=run.group.likes)
    _regroup(run, group, done)
    if not in_place:
        run.scores = run.new_scores()
        step.plan(run.settings.compiling, step.planned)
        trainer.clock.cool()
    if run.probe is not None:
        if run.probe.enough:
            yield run.probe.event()
        run.probe = None
    for variant in new:
        yield ev.MemberChanged(time.time(), variant, ev.RUNNING)


def _regroup(run: Progress, group: Group | None, done: Sequence[int]) -> None:
    """Let the run's array be of these variants; those that it had beside them are arrays that are over.

    Args:
        group: of the members that train; None where there are none.
        done: variants that have trained to their end.
    """
    trainer, before = run.trainer, run.group
    if group is None and set(done) == set(before.ids):
        return
    gone = [v for v in before.ids if v not in done and (group is None or v not in group.ids)]
    parts, free = [], trainer.free_index
    if gone:
        parts.append(before.half(gone, free if group else before.index, f"ended before others of array {before.index}"))
    if done:
        parts.append(before.half(done, free + 1, f"done before others of array {before.index}"))
    trainer.replace(before, [*(replace(part, fitted=True) for part in parts), *([group] if group else [])])
    if group is None:
        return
    trainer.clock.tick()
    begun = MemberRecord(-1, {}, 0, start=run.epoch, first_step=run.steps, first_pass=run.pass_)
    begun.begin_s = trainer.clock.elapsed_s
    run.group = group
    rows = range(len(run.step)) if run._rows is None else run._rows
    run.members = run.members.regrouped(group, [run.step.narrower(row) for row in rows], begun)
