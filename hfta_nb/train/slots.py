"""Members that join an array between two of its epochs, in places that others have left.

A search asks for trials while an array trains. Those that fuse with its members join it: each with its own epochs,
steps, order of data, lr schedule and random streams, so that it trains as it would in an array of its own.

Arrays that have begun join one that trains as well, with all that their members have learnt. They wait for another one
where a paused member was resumed, where a clone did not fuse with its source, where memory has halved an array, and
where members that were done train on.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from hfta_nb.data import Stream
from hfta_nb.errors import FusionError, HftaError, MemberError, StoreError, out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import checkpoint, failures, rebuild
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.joining import Joiner
from hfta_nb.train.members import begun
from hfta_nb.train.pending_group import PendingGroup
from hfta_nb.train.rebuild import Arrivals, Rebuilt
from hfta_nb.train.step import ArrayStep, Origin
from hfta_nb.train.step.rollback import on_host


def joins(run: Progress) -> bool:
    """Whether members can join this array."""
    if isinstance(run.data, Stream) or any(phase.every > 1 for phase in run.settings.family.phases):
        return False  # a stream is where it is, and phases are due by the steps of the array
    return not run.group.serial and run.trainer.prepare is None and isinstance(run.step, ArrayStep)


def refills(run: Progress) -> bool:
    """Whether members join and leave this array at different times: in a search, and where others have joined it."""
    return joins(run) and (run.settings.slots is not None or any(member.start for member in run.members.all))


def between(run: Progress) -> Generator[Event, None, bool]:
    """Between two epochs: let members go that are done, and others join; whether another array trains first."""
    first = None
    if refills(run):
        first = yield from _turn(run)
    elif joins(run) and run.settings.population is None and run.settings.pulling is None:  # of one age
        over = not run.members.ids or any(run.left(member) <= 0 for member in run.members.active)
        if any(pending.begun for pending in run.trainer.waiting) and not over and run.between_passes():
            yield from _merge(run, ())
            first = _first_to_train(run)
    if first is not None:
        yield from _defer(run, first)
    return first is not None


def _turn(run: Progress) -> Generator[Event, None, PendingGroup | None]:
    """Between two epochs: let members go that are done or pruned, and others join in their places.

    Those that have begun elsewhere come before those that begin: somebody has asked for them, or waits for them.

    Returns:
        An array that is to train before this one goes on.
    """
    trainer, before = run.trainer, run.group
    trainer.clock.tick()
    done = [m.id for m in run.members.active if run.left(m) <= 0]
    ends = [(set(part), checkpoint.end_of(run, part)) for part in rebuild.begun_together(run, done)]
    for variant in done:
        yield from run.leave([variant], ev.COMPLETE, "", hold=True)
    yield from _leaving_requested(run)
    passed, first = run.between_passes(), None
    if passed:
        yield from _merge(run, done)
        first = _first_to_train(run)
    free = Joiner.room(run.settings, run.group) - len(run.members.ids)
    if run.settings.slots is not None and free > 0 and passed and first is None:
        joiner = Joiner(trainer, run.group, run.members.ids, free)
        with trainer.joined_by(joiner):
            yield ev.SlotsFreed(time.time(), run.group.index, len(run.members.ids), free)
            yield from _join(run, joiner, done if run.group is before else ())
    rebuild.cut_down(run)
    if run.group is before and done:  # nobody has joined
        kept = run.members.ids
        rebuild.regroup(run, before.half(kept, before.index, before.reason) if kept else None, done)
    for part, end in ends:
        end(next(group.index for group in trainer.arrays if set(group.ids) == part))
    if done or run.group is not before:
        yield ev.PlanMade(time.time(), trainer.records())
    return first


def _leaving_requested(run: Progress) -> Iterator[Event]:
    """Prune and stop members, all at once; other requests wait for the next step."""
    for request in run.trainer.control.poll():
        if isinstance(request, ev.Prune) and request.variant in run.members.ids:
            if request.variant not in run.trainer.pinned:
                yield from run.leave([request.variant], ev.PRUNED, request.reason, hold=True)
        elif isinstance(request, ev.Pin):
            run.trainer.pin(request)
        else:
            run.trainer.control.put(request)  # its member may have ended meanwhile: then it is refused, not raised


# Members that begin.


def _join(run: Progress, joiner: Joiner, done: Sequence[int]) -> Iterator[Event]:
    """Let those join that wait and fit; one that can't be built is tried alone.

    Args:
        done: members that have just trained to their end.
    """
    trainer = run.trainer
    while joiner.look():
        arrivals = Arrivals(joiner, done=done)
        try:
            rebuilt = rebuild.built(run, arrivals)
        except MemberError as error:
            pending = next((pending for pending, variant in joiner.found if variant.id == error.member), None)
            if pending is None or error.member is None:
                raise
            failure = failures.noted(trainer, error.member, error)
        except FusionError as error:  # they train in an array of their own
            why = f"{len(joiner.found)} trials wait for another array: {error.message}"
            yield ev.PhaseChanged(time.time(), run.group.index, "training", why)
            return
        except Exception as error:
            if not out_of_memory(error):
                raise
            return
        else:
            yield from rebuild.rebuild(run, arrivals, rebuilt)
            return
        trainer.waiting.remove(pending)
        yield from failures.build_without(trainer, pending.group, failure)
        joiner.begin()


# Arrays that have begun.


def _merge(run: Progress, done: Sequence[int]) -> Iterator[Event]:
    """Let arrays join that have begun, wait between two epochs, fuse with this one and fit.

    Args:
        run: the array, between two passes through the data.
        done: members that have just trained to their end.
    """
    for pending in list(run.trainer.waiting):
        if not pending.between_epochs or (joiner := _joiner(run, pending)) is None:
            continue
        run.refused.tried(pending.group.index)
        found = _combined(run, joiner, done)
        if found is not None:
            yield from _merged(run, *found)
            done = ()


def _first_to_train(run: Progress) -> PendingGroup | None:
    """An array that waits in the middle of an epoch and can join this one after that epoch, if that is worth building
    this one again."""
    trainer = run.trainer
    if not run.members.ids or run.settings.steps_per_epoch is not None:
        return None
    mine = max(map(run.left, run.members.active))
    for pending in trainer.waiting:
        if pending.run is None or pending.between_epochs:
            continue
        starts, done = begun(pending.run["members"]), int(pending.run["epoch"]) + 1
        left = max(trainer.budget(variant) - (done - starts[variant][0]) for variant in pending.ids)
        if min(mine, left) * (run.length or 0) >= rebuild.RECORDING_STEPS and _joiner(run, pending) is not None:
            return pending
    return None


def _defer(run: Progress, first: PendingGroup) -> Iterator[Event]:
    """Let another array train to the end of its epoch, where this one joins it."""
    trainer, state = run.trainer, on_host(run.state())
    trainer.take_weights(on_host(run.members.unsaved()))
    trainer.withdraw(first)
    trainer.put_first([first.group, run.group], [first.run, state])
    for variant in run.members.ids:
        why = f"to join array {first.group.index} at the end of its epoch"
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, why)


def _joiner(run: Progress, pending: PendingGroup) -> Joiner | None:
    """The members of an array that waits as those that may join; None where not all that still train can."""
    trainer = run.trainer
    ids = [v for v in pending.ids if v not in trainer.early_stops | trainer.requested.deleted]
    free = Joiner.room(run.settings, run.group) - len(run.members.ids)
    if not run.members.ids or not 0 < len(ids) <= free or pending.group.serial:
        return None
    if run.refused.has(pending.group.index, run.members.ids, ids):
        return None
    joiner = Joiner(trainer, run.group, run.members.ids, free)
    if joiner.take(pending, ids):
        return joiner
    run.refused.unlike(pending.group.index, run.members.ids, ids)
    return None


def _combined(run: Progress, joiner: Joiner, done: Sequence[int]) -> tuple[Progress, Arrivals, Rebuilt] | None:
    """The other array, its members, and the array of both together; None where they can't be built."""
    trainer, pending = run.trainer, joiner.found[0][0]
    changed = {variant: list(names) for variant, names in trainer.requested.changed.items()}
    try:
        opened = trainer.opened(pending)
        trainer.withdraw(pending, opened)
        joiner.found_in(opened)
        other = Progress(trainer, opened.group, opened.run)
        try:
            checkpoint.build(other)
        finally:
            other.source.close()
        if other.between_passes() and isinstance(other.step, ArrayStep):
            ids = {variant.id for _, variant in joiner.found}
            there = zip(other.members.active, other.rows, strict=True)
            coming = [(member, row) for member, row in there if member.id in ids]
            origins = {member.id: Origin(other.step, row) for member, row in coming}
            further = run.epoch - other.epoch, run.steps - other.steps, run.pass_ - other.pass_
            records = {member.id: member.moved(*further) for member, _ in coming}
            arrivals = Arrivals(joiner, origins, records, done)
            return other, arrivals, rebuild.built(run, arrivals)
    except Exception as error:  # they train one after another, as they would have
        if isinstance(error, StoreError) or not (out_of_memory(error) or isinstance(error, HftaError)):
            raise
    trainer.requested.put_back(changed)
    return None


def _merged(run: Progress, other: Progress, arrivals: Arrivals, rebuilt: Rebuilt) -> Iterator[Event]:
    """Go on with the array of both."""
    yield from rebuild.rebuild(run, arrivals, rebuilt)
    stopped = sorted(run.trainer.early_stops & set(other.members.ids))
    other.keep_last(stopped)
    run.members.take_weights(other.members.unsaved())
    yield ev.PlanMade(time.time(), run.trainer.records())
    for variant in stopped:
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, "stopped by request")
