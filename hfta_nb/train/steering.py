"""What a run does when something is asked of one of its members, or of how long it trains; between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Clone, Delete, Event, Extend, Pause, Pin, Prune, Request, Resume, Set, Stop
from hfta_nb.train import aside, cloning, extending
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.step import editing
from hfta_nb.train.whereabouts import BEGUN, ENDED, PAUSED, TRAINING, WAITING, alive, noted, reached, where


def answer(trainer: Schedule, run: Progress | None, request: Request) -> Iterator[Event]:
    """Do what is asked of a member, or say why not.

    Args:
        trainer: of the run.
        run: the array that trains; None between two arrays.
        request: none to the whole run but `Extend` and `Add`.
    """
    if isinstance(request, ev.Add):
        yield from trainer.added(request)
        return
    if run is not None:
        run.settle()
    key = str(getattr(request, "key", ""))
    if key and key in trainer.asked.answered:
        return
    if key:
        trainer.asked.answered.append(key)
    try:
        yield from _ANSWERS[type(request)](trainer, run, request)
    except HftaError as error:
        variant = getattr(request, "variant", None)
        yield ev.RequestRefused(time.time(), type(request).__name__, variant, error.message)
        return
    if key:  # what a person has asked for is not lost
        yield from _kept(trainer, run)


def before(run: Progress) -> Iterator[Event]:
    """What was asked of members before their array was built: some leave it before they begin."""
    asked = run.trainer.asked
    for variant in sorted(asked.deleted & set(run.members.ids)):
        yield from run.leave([variant], ev.DELETED, "deleted by request")
    yield from _hold(run)


def begun(run: Progress) -> Iterator[Event]:
    """Make the clones that have waited for the array of their source to be built."""
    asked = run.trainer.asked
    for variant, request in list(asked.clones.items()):
        if variant in asked.deleted or variant in run.trainer.early_stops:
            del asked.clones[variant]
        elif request.variant in run.members.ids:
            del asked.clones[variant]
            planned, _ = aside.find(run.trainer, None, variant)
            yield from cloning.warm(run, request, planned)
    yield from _hold(run)


def _hold(run: Progress) -> Iterator[Event]:
    """Pause the members that were to be paused when their array is built."""
    asked = run.trainer.asked
    for variant in sorted(asked.held & set(run.members.ids)):
        asked.held.discard(variant)
        yield from hold(run, variant)


def orphaned(trainer: Schedule) -> Iterator[Event]:
    """Clones that can't be made any more, as their source has ended before its array was built."""
    for variant, request in list(trainer.asked.clones.items()):
        del trainer.asked.clones[variant]
        trainer.early_stops.add(variant)
        why = f"#{request.variant} has ended before it could be cloned"
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, why)


def _pause(trainer: Schedule, run: Progress | None, request: Pause) -> Iterator[Event]:
    variant = _number(request.variant)
    found = alive(trainer, run, variant, "pause")
    if found == PAUSED:
        raise StudyError("is paused already", where=f"pause #{variant}")
    if found == TRAINING and run is not None:
        yield from run.tell(always=True)
        if variant in run.members.ids:  # else its loss was not finite, as has just been told
            yield from hold(run, variant)
        return
    trainer.asked.held.add(variant)
    yield ev.MemberChanged(time.time(), variant, ev.PAUSED, "paused by request")


def hold(run: Progress, variant: int) -> Iterator[Event]:
    """Pause a member of an array."""
    run.keep_last([variant])  # it may be stopped before it is in an array again
    made = yield from aside.set_aside(run, [variant], ev.PAUSED, "paused by request", f"#{variant} was paused")
    run.trainer.asked.paused[variant] = made[1]


def _resume(trainer: Schedule, run: Progress | None, request: Resume) -> Iterator[Event]:
    variant = _number(request.variant)
    if where(trainer, run, variant) != PAUSED:
        raise StudyError("is not paused", where=f"resume #{variant}")
    if variant in trainer.asked.held:
        trainer.asked.held.discard(variant)
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, "resumed")
        return
    state = trainer.asked.paused.pop(variant)
    trainer.put_first([aside.find(trainer, run, variant)[0]], [state])
    yield ev.MemberChanged(time.time(), variant, ev.WAITING, "resumed")


def _stop(trainer: Schedule, run: Progress | None, request: Stop) -> Iterator[Event]:
    variant = _number(request.variant)
    if run is not None and variant in run.members.ids:
        yield from run.leave([variant], ev.STOPPED, "stopped by request")
        return
    if variant in trainer.asked.paused:
        del trainer.asked.paused[variant]
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, "stopped by request")
        return
    trainer.asked.held.discard(variant)
    found = where(trainer, run, variant)
    trainer.early_stops.add(variant)
    if found != ENDED:  # what it has learnt is kept when its array is built
        why = "stopped by request" if found == BEGUN else "stopped before it started"
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, why)


def _delete(trainer: Schedule, run: Progress | None, request: Delete) -> Iterator[Event]:
    variant, reason = request.variant, "deleted by request"
    if where(trainer, run, variant) == TRAINING and run is not None:
        yield from run.tell(always=True)
    trainer.asked.deleted.add(variant)
    trainer.asked.held.discard(variant)
    trainer.asked.paused.pop(variant, None)
    if run is not None and variant in run.members.ids:
        yield from run.leave([variant], ev.DELETED, reason)
    else:
        yield ev.MemberChanged(time.time(), variant, ev.DELETED, reason)


def _prune(trainer: Schedule, run: Progress | None, request: Prune) -> Iterator[Event]:
    if run is not None and request.variant not in trainer.pinned:
        yield from run.leave([request.variant], ev.PRUNED, request.reason)


def _pin(trainer: Schedule, run: Progress | None, request: Pin) -> Iterator[Event]:
    trainer.pin(request)
    return iter(())


def _set(trainer: Schedule, run: Progress | None, request: Set) -> Iterator[Event]:
    variant = request.variant
    found = alive(trainer, run, variant, "set")
    group, place = aside.find(trainer, run, variant)
    old, allowed = group.rows[place], editing.changeable(trainer.settings.family.phases)
    for name in request.changes:
        if name not in allowed:
            remedy = "clone the member: control.clone(...)"
            raise StudyError("can't be changed while it trains", where=name, got=request.changes[name],
                             accepted=", ".join(allowed), remedy=remedy)  # fmt: skip
    changes = {name: value for name, value in request.changes.items() if old[name] != value}
    if not changes:
        return
    row, span = {**old, **changes}, cloning.span_of(trainer, group, variant)
    editing.check(old, row, span)
    if found == TRAINING and run is not None:
        at = run.members.ids.index(variant)
        editing.set_values(run.step, run.rows[at], row, span, tuple(changes))
        run.members.active[at].row = row
    elif found != WAITING:
        trainer.asked.change(variant, changes)
    noted(trainer, run, variant, changes)
    epoch, step = reached(trainer, run, variant)
    yield ev.MemberEdited(time.time(), variant, "set", None, True, epoch, step, changes, "by request")


def _clone(trainer: Schedule, run: Progress | None, request: Clone) -> Iterator[Event]:
    source, owner, asked = request.variant, trainer.owner, trainer.asked
    found = where(trainer, run, source)
    what = f"clone #{source}"
    if owner is None:
        raise StudyError("nothing takes it in", where=what)
    if request.warm and found in (ENDED, WAITING):
        why = "has ended" if found == ENDED else "has not begun"
        raise StudyError(f"{why}, and has no state to begin with", where=what, remedy="clone it cold: warm=False")
    if request.warm and source in asked.held and source not in asked.paused:
        raise StudyError("is in an array that waits", where=what, remedy="resume it first, or clone it cold")
    if found == TRAINING and request.warm and run is not None:
        yield from run.tell(always=True)
        if source not in run.members.ids:
            raise StudyError("has ended", where=what)
    [planned] = owner.adopt(request, asked.edits.get(source, {}), aside.find(trainer, run, source))
    variant = planned.ids[0]
    trainer.arrays.append(planned)
    if request.warm and source in asked.budgets:
        asked.budgets[variant] = asked.budgets[source]
    if not request.warm:
        trainer.put_last(planned)
        yield cloning.edited(request, planned, 0, 0, "from the start, after the arrays that wait")
        yield ev.PlanMade(time.time(), trainer.records())
    elif found == TRAINING and run is not None:
        yield from cloning.warm(run, request, planned)
    elif found == PAUSED and (state := asked.paused[source]) is not None:
        yield from cloning.alone(trainer, run, request, planned, state, f"#{source} is paused")
    else:  # the array of its source waits: the clone is made when that is built
        asked.clones[variant] = request
        yield ev.PlanMade(time.time(), trainer.records())


def _kept(trainer: Schedule, run: Progress | None) -> Iterator[Event]:
    """A checkpoint, so that what was asked is not lost."""
    if run is not None and run.members.ids:
        yield from run.save()
    elif trainer.save is not None:
        group = trainer.arrays[0] if run is None else run.group
        weights = {} if run is None else run.members.unsaved()
        yield ev.CheckpointSaved(time.time(), group.index, 0, trainer.checkpoint(group, None, weights))


def _number(variant: int | None) -> int:
    if variant is None:
        raise StudyError("names no variant")
    return variant


_ANSWERS: dict[type[Request], Callable[..., Iterator[Event]]] = {
    Pause: _pause,
    Resume: _resume,
    Stop: _stop,
    Delete: _delete,
    Prune: _prune,
    Pin: _pin,
    Set: _set,
    Clone: _clone,
    Extend: extending.extend,
}
