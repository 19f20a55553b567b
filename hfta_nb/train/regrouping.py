"""Arrays of which members have left and that others come to: in place where they fit, built anew elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hfta_nb.errors import MemberError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import recording_cost
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.joining import Joiner, taken_off
from hfta_nb.train.members import MemberRecord
from hfta_nb.train.plan import Group
from hfta_nb.train.step import ArrayStep, Origin, put_member, recomposed
from hfta_nb.train.step.recompose import fits

ALPHA = 0.8
"""An array of which a smaller share of the places is taken is cut down to its members, unless it soon ends."""


def keeps(run: Progress, members: int, left: int) -> bool:
    """Whether places that nobody takes stay in the array: to cut it down, its steps are recorded anew.

    Args:
        members: that go on.
        left: epochs that one of them still trains, at most.
    """
    s, places, length = run.settings, len(run.step), run.length or 0
    if not members or s.deterministic or s.strategy != "measured":  # as wide as a run that is interrupted
        return bool(members) and s.deterministic
    return members >= ALPHA * places or (places - members) * left * length < recording_cost.STEPS * places


def between_passes(run: Progress) -> bool:
    """Whether all members are at the beginning of a pass through the data, where others can begin."""
    if run.place and run.place == run.source.length:  # the next batch would find it out
        run.pass_, run.place, run._stream = run.pass_ + 1, 0, None
    return not run.place


def places_of(run: Progress, joiner: Joiner) -> list[int | None]:
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


def step_of(
    run: Progress,
    joiner: Joiner,
    group: Group,
    places: Sequence[int | None],
    begun: Mapping[int, Origin] = MappingProxyType({}),
) -> ArrayStep:
    """The step of the array with those that join: in place where their places are as they need them.

    Args:
        begun: by variant, where those that join go on from; others begin.

    Raises:
        MemberError: one can't be built; its number is that of the group.
    """
    old, new = run.step, [variant.id for _, variant in joiner.found]
    assert isinstance(old, ArrayStep)  # as `refills` has seen
    kept = dict(zip(run.members.ids, run.rows, strict=True))
    full = None not in places or keeps(run, len(group.ids), run.trainer.settings.epochs)
    if len(places) == len(old) and full:
        origins = {places.index(variant): origin for variant, origin in begun.items()}
        if not begun:
            part = replace(group.part(new, group.index, ""), likes=())
            fresh = _built(run, part, group)
            origins = {places.index(id): Origin(fresh, place, spent=True) for place, id in enumerate(part.ids)}
        if all(fits(old, place, origin) for place, origin in origins.items()):
            for place, origin in origins.items():
                put_member(old, place, origin)
            return old
    made = _built(run, group, group)
    recomposed(made, [Origin(old, kept[v]) if v in kept else begun.get(v) for v in group.ids])
    made.steps, made.planned = old.steps, old.planned
    if not run.settings.deterministic:
        return made
    return made.select([0 if variant is None else group.ids.index(variant) for variant in places])


def _built(run: Progress, part: Group, group: Group) -> ArrayStep:
    try:
        made = run.trainer.build(part)
    except MemberError as error:
        raise error.of(group.ids.index(part.ids[error.member or 0])) from error.__cause__
    assert isinstance(made, ArrayStep)  # the group is not serial
    return made


def joined(
    run: Progress, joiner: Joiner, group: Group, step: ArrayStep, places: Sequence[int | None], done: Sequence[int]
) -> Iterator[Event]:
    """Go on with the step of the new array."""
    trainer, new, in_place = run.trainer, [variant.id for _, variant in joiner.found], step is run.step
    taken_off(trainer, joiner.found)
    taken = [row for row, variant in enumerate(places) if variant is not None]
    run.step, run._rows = step, taken if len(taken) < len(step) else None
    step.due = run._rows
    if in_place:
        run.held = [before if v is None else v for before, v in zip(run.held, places, strict=True)]
        group = replace(group, likes=run.group.likes)
    else:
        run.held = [group.ids[0] if v is None else v for v in places]
    regroup(run, group, done)
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


def begun_together(run: Progress, ids: Sequence[int]) -> list[list[int]]:
    """These members of an array by when they have begun: those of a part have trained as many epochs."""
    found: dict[int, list[int]] = {}
    for member in run.members.all:
        if member.id in ids:
            found.setdefault(member.start, []).append(member.id)
    return list(found.values())


def regroup(run: Progress, group: Group | None, done: Sequence[int]) -> None:
    """Let the run's array be of these variants; those that it had beside them are arrays that are over.

    Args:
        group: of the members that train; None where there are none.
        done: variants that have trained to their end.
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
    if group is None:
        return
    trainer.clock.tick()
    begun = MemberRecord(-1, {}, 0, start=run.epoch, first_step=run.steps, first_pass=run.pass_)
    begun.begin_s = trainer.clock.elapsed_s
    run.group = group
    rows = range(len(run.step)) if run._rows is None else run._rows
    run.members = run.members.regrouped(group, [run.step.narrower(row) for row in rows], begun)
