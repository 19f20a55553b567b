"""Members that come to an array that trains: in place where they fit, in an array that is built anew elsewhere.

Places that others have left are filled in one way with members that begin and with those of arrays that have begun: the
difference is where a member goes on from, and what its record says. Here is also how members leave for another array.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from hfta_nb.errors import MemberError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.joining import Joiner, taken_off
from hfta_nb.train.members import MemberRecord
from hfta_nb.train.plan import Group
from hfta_nb.train.step import ArrayStep, Origin, put_member, recomposed
from hfta_nb.train.step.recompose import fits
from hfta_nb.train.step.rollback import on_host

ALPHA = 0.8
"""An array of which a smaller share of the places is taken is cut down to its members, unless it soon ends."""

RECORDING_STEPS = 100.0
"""Steps of the array that recording its calls anew costs at most.

It is not measured: how wide an array is decides how it rounds, and all runs on a machine are to give the same bits."""

AT_ONCE = 2.5
"""So many times as many where all members run at once: steps are short, and take nearly as long with fewer members."""


@dataclass(frozen=True)
class Arrivals:
    """Members that come to an array.

    Attributes:
        joiner: has found them among those that wait.
        origins: by variant, where they go on from; others begin.
        records: by variant, the records of those that go on.
        done: members of the array that have just trained to their end.
    """

    joiner: Joiner
    origins: Mapping[int, Origin] = field(default_factory=dict)
    records: Mapping[int, MemberRecord] = field(default_factory=dict)
    done: Sequence[int] = ()

    @property
    def ids(self) -> list[int]:
        return [variant.id for _, variant in self.joiner.found]


@dataclass(frozen=True)
class Rebuilt:
    """An array as it will be; nothing of the one that trains has changed but what `put_member` changes.

    Attributes:
        group: of the members that train.
        places: per row of the step, its variant; None for one that nobody takes.
    """

    group: Group
    places: Sequence[int | None]
    step: ArrayStep


def cut_down(run: Progress) -> None:
    """Let places go that nobody takes, if what that saves is worth recording the steps anew."""
    s, step, members = run.settings, run.step, len(run.members.ids)
    if members and s.strategy == "measured" and isinstance(step, ArrayStep):  # else as wide as one that is interrupted
        steps = max(map(run.left, run.members.active)) * (run.length or 0)
        worth = RECORDING_STEPS * (1.0 if step.array.block_size < len(step) else AT_ONCE)
        if members >= ALPHA * len(step) or (len(step) - members) * steps < worth * len(step):
            return
    run.settle()


def built(run: Progress, arrivals: Arrivals) -> Rebuilt:
    """The array with those that come: in place where their places are as they need them.

    Raises:
        MemberError: one can't be built; its number is its variant's.
    """
    places = _places(run, arrivals.joiner)
    group = arrivals.joiner.group([variant for variant in places if variant is not None])
    wide = run.settings.deterministic or run.settings.strategy == "measured"  # else as `cut_down` says
    if len(places) == len(run.step) and (wide or None not in places):
        step = _filled(run, arrivals, group, places)
        if step is not None:
            return Rebuilt(replace(group, likes=run.group.likes), places, step)
    old = run.step
    assert isinstance(old, ArrayStep)  # as `slots.joins` has seen
    kept = {v: Origin(old, row) for v, row in zip(run.members.ids, run.rows, strict=True)}
    step = recomposed(_built(run, group), [(kept | dict(arrivals.origins)).get(v) for v in group.ids])
    step.count_as(old)
    if not run.settings.deterministic:
        return Rebuilt(group, group.ids, step)
    return Rebuilt(group, places, step.select([0 if v is None else group.ids.index(v) for v in places]))


def _places(run: Progress, joiner: Joiner) -> list[int | None]:
    """The variants of the array with those that join, each in a place that was left, as far as there are such; None for
    one that nobody takes.

    One of the architecture that was there comes first: it can be put in its place.
    """
    places: list[int | None] = [None] * len(run.step)
    for variant, row in zip(run.members.ids, run.rows, strict=True):
        places[row] = variant
    shapes = {id: repr(a) for id, a in zip(run.group.ids, run.group.arguments, strict=True)}
    joins = {variant.id: repr(joiner.arguments(pending, variant)) for pending, variant in joiner.found}
    for place, variant in enumerate(run.row_ids):
        like = next((v for v, shape in joins.items() if shape == shapes.get(variant)), None)
        if places[place] is None and like is not None:
            places[place] = like
            del joins[like]
    for place, taken in enumerate(places):
        if taken is None and joins:
            places[place] = next(iter(joins))
            del joins[next(iter(joins))]
    return [*places, *joins]


def _filled(run: Progress, arrivals: Arrivals, group: Group, places: Sequence[int | None]) -> ArrayStep | None:
    """The step that trains, with those that come in their places; None where one does not fit."""
    step, origins = run.step, arrivals.origins
    assert isinstance(step, ArrayStep)  # as `slots.joins` has seen
    if not origins:
        part = replace(group.part(arrivals.ids, group.index, ""), likes=())
        fresh = _built(run, part)
        origins = {id: Origin(fresh, place, consumed=True) for place, id in enumerate(part.ids)}
    by_place = {places.index(variant): origin for variant, origin in origins.items()}
    if not all(fits(step, place, origin) for place, origin in by_place.items()):
        return None
    for place, origin in by_place.items():
        put_member(step, place, origin)
    return step


def _built(run: Progress, part: Group) -> ArrayStep:
    try:
        made = run.trainer.build(part)
    except MemberError as error:
        raise error.of(part.ids[error.member or 0]) from error.__cause__
    assert isinstance(made, ArrayStep)  # the group is not serial
    return made


def rebuild(run: Progress, arrivals: Arrivals, rebuilt: Rebuilt) -> Iterator[Event]:
    """Go on with the members that were there and those that come."""
    trainer, places, step = run.trainer, rebuilt.places, rebuilt.step
    in_place = step is run.step
    taken_off(trainer, arrivals.joiner.found)
    others = run.row_ids if in_place else [rebuilt.group.ids[0]] * len(step)
    rows = [row for row, variant in enumerate(places) if variant is not None]
    row_ids = [other if v is None else v for other, v in zip(others, places, strict=True)]
    run.go_on(step, rows, row_ids, None if in_place else run.new_scores(len(step)))
    regroup(run, rebuilt.group, arrivals.done, arrivals.records)
    if not in_place:
        step.plan(run.settings.compiling, step.planned, step.brief)
        trainer.clock.cool()
    run.probe = None
    for variant in arrivals.ids:
        yield ev.MemberChanged(time.time(), variant, ev.RUNNING)


def take_out(
    run: Progress, ids: Sequence[int], state: str, reason: str, why: str
) -> Generator[Event, None, tuple[Group, Mapping[str, Any] | None]]:
    """Members leave for an array of their own, which waits for nobody yet.

    Args:
        run: of the array that they leave.
        ids: the members.
        state: that they enter.
        reason: of the state.
        why: they are not in the array any more.

    Returns:
        Their array, and how far it is; None where they have not begun.
    """
    whole, taken = run.group, None
    own = whole.part(ids, run.trainer.free_index, why)
    # In a deterministic study they are where they begin, so that their array will have as many rows as this one.
    if run.stage != "building" or run.resume is not None or run.settings.deterministic:
        own, taken = replace(whole.half(ids, own.index, why), fitted=True), on_host(run.state(ids))
    kept = {v: weights for v, weights in run.members.unsaved().items() if v in ids or isinstance(v, str)}
    yield from run.leave(ids, state, reason)
    run.members.take_weights(kept)
    yield from run.part_with(own)
    return own, taken


def longer(run: Progress) -> Iterator[Event]:
    """Members that train longer than the others of their array go on in one of their own, next."""
    trainer = run.trainer
    more = [member.id for member in run.members.active if run.left(member) > 0]
    if more:
        reason = f"to train on to epoch {min(map(trainer.budget, more))}"
        own, taken = yield from take_out(run, more, ev.WAITING, reason, "it trains longer")
        trainer.put_first([own], [taken])


def begun_together(run: Progress, ids: Sequence[int]) -> list[list[int]]:
    """These members of an array by when they have begun: those of a part have trained as many epochs."""
    found: dict[int, list[int]] = {}
    for member in run.members.all:
        if member.id in ids:
            found.setdefault(member.start, []).append(member.id)
    return list(found.values())


def regroup(
    run: Progress, group: Group | None, done: Sequence[int], records: Mapping[int, MemberRecord] = MappingProxyType({})
) -> None:
    """Let the run's array be of these variants; those that it had beside them are arrays that are over.

    Args:
        group: of the members that train; None where there are none.
        done: variants that have trained to their end.
        records: by variant, those of members that have begun elsewhere.
    """
    trainer, before, ended = run.trainer, run.group, begun_together(run, done)
    if group is None and len(ended) == 1 and set(done) == set(before.ids):
        return
    gone = [v for v in before.ids if v not in done and (group is None or v not in group.ids)]
    parts, free = [], trainer.free_index
    if gone:
        parts.append(before.half(gone, free if group else before.index, f"ended before others of array {before.index}"))
    why = f"done before others of array {before.index}"
    parts += [before.half(part, free + 1 + number, why) for number, part in enumerate(ended)]
    trainer.replace(before, [*(replace(part, fitted=True) for part in parts), *([group] if group else [])])
    if group is not None:
        run.become(group, records)
