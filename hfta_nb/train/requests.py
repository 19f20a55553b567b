"""What a run does when something is asked of it: of the whole, or of one of its members; between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Clone, Delete, Event, Extend, Pause, Pin, Prune, Request, Resume, Set, Stop
from hfta_nb.train import cloning, extending, rebuild
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.status import BEGUN, ENDED, PAUSED, TRAINING, WAITING, alive, noted, reached, where
from hfta_nb.train.step import editing


def answer(run: Progress, request: ev.Request) -> Iterator[Event]:
    """Do what is asked, between two steps; another array that takes turns does it in its own."""
    other = _concerned(run, request)
    if other is not None:
        other.passed_on.append(request)
        return
    if isinstance(request, Stop) and request.variant is None:
        yield from _stop_all(run)
    elif isinstance(request, ev.Pause) and request.variant is None:
        yield from _pause_all(run)
    elif not isinstance(request, ev.Resume) or request.variant is not None:
        yield from _answered(run.trainer, run, request)


def answer_between(trainer: Schedule, request: ev.Request) -> Iterator[Event]:
    """Do what is asked between two arrays; a pause of the whole run is left to the next one."""
    if isinstance(request, ev.Pause) and request.variant is None:
        trainer.control.put(request)
    elif not isinstance(request, ev.Resume) or request.variant is not None:
        yield from _answered(trainer, None, request)


def wait_for_paused(trainer: Schedule) -> Iterator[Event]:
    """Nothing is left to train but members that are paused: wait until one is resumed, or the run is to stop."""
    count = len(trainer.requested.paused)
    yield ev.RunChanged(time.time(), ev.PAUSED, f"only paused members are left ({count}): resume, stop or delete them")
    while trainer.requested.paused and not trainer.waiting:
        requests = trainer.control.wait(0.5)
        if not requests:
            yield ev.Heartbeat(time.time())
        for request in requests:
            if request == ev.Stop():
                trainer.stop()
                return
            if request == ev.Resume():  # of the whole run, which these members keep from going on
                for variant in list(trainer.requested.paused):
                    yield from _answered(trainer, None, ev.Resume(variant))
            elif request != ev.Pause():
                yield from _answered(trainer, None, request)
    trainer.clock.skip()
    yield ev.RunChanged(time.time(), ev.RUNNING)


def _concerned(run: Progress, request: ev.Request) -> Progress | None:
    """The other array whose member a request is about; None if there is none."""
    variant = getattr(request, "variant", None)
    return next((other for other in run.together()[1:] if variant in other.members.ids), None)


def _pause_all(run: Progress) -> Iterator[Event]:
    for one in run.together():
        yield from one.report(always=True)
    yield from run.save()
    yield ev.RunChanged(time.time(), ev.PAUSED)
    while True:
        requests = run.trainer.control.wait(0.5)
        if not requests:
            yield ev.Heartbeat(time.time())
        for request in requests:
            if request == ev.Resume():
                run.trainer.clock.skip()
                for one in run.together():
                    one.resumed()
                yield ev.RunChanged(time.time(), ev.RUNNING)
                return
            if request != ev.Pause():
                yield from answer(run, request)
            if run.trainer.stopped:
                return


def _stop_all(run: Progress) -> Iterator[Event]:
    for one in run.together():
        yield from one.report(always=True)
        one.keep_last(one.members.ids)
    yield from run.save()
    run.trainer.stop()
    for member in [member for one in run.together() for member in one.members.active]:
        yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, ev.WITH_RUN)


# Of one member, or of how long a run trains.


def _answered(trainer: Schedule, run: Progress | None, request: Request) -> Iterator[Event]:
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
    if key and key in trainer.requested.answered:
        return
    if key:
        trainer.requested.answered.append(key)
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
    requested = run.trainer.requested
    for variant in sorted(requested.deleted & set(run.members.ids)):
        yield from run.leave([variant], ev.DELETED, "deleted by request")
    yield from _hold(run)


def begun(run: Progress) -> Iterator[Event]:
    """Make the clones that have waited for the array of their source to be built."""
    requested = run.trainer.requested
    for variant, request in list(requested.clones.items()):
        if variant in requested.deleted or variant in run.trainer.early_stops:
            del requested.clones[variant]
        elif request.variant in run.members.ids:
            del requested.clones[variant]
            planned, _ = run.trainer.find(variant)
            yield from cloning.warm(run, request, planned)
    yield from _hold(run)


def _hold(run: Progress) -> Iterator[Event]:
    """Pause the members that were to be paused when their array is built."""
    requested = run.trainer.requested
    for variant in sorted(requested.held & set(run.members.ids)):
        requested.held.discard(variant)
        yield from hold(run, variant)


def orphaned(trainer: Schedule) -> Iterator[Event]:
    """Clones that can't be made any more, as their source has ended before its array was built."""
    for variant, request in list(trainer.requested.clones.items()):
        del trainer.requested.clones[variant]
        trainer.early_stops.add(variant)
        why = f"#{request.variant} has ended before it could be cloned"
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, why)


def _pause(trainer: Schedule, run: Progress | None, request: Pause) -> Iterator[Event]:
    variant = _number(request.variant)
    found = alive(trainer, run, variant, "pause")
    if found == PAUSED:
        raise StudyError("is paused already", where=f"pause #{variant}")
    if found == TRAINING and run is not None:
        yield from run.report(always=True)
        if variant in run.members.ids:  # else its loss was not finite, as has just been told
            yield from hold(run, variant)
        return
    trainer.requested.held.add(variant)
    yield ev.MemberChanged(time.time(), variant, ev.PAUSED, "paused by request")


def hold(run: Progress, variant: int) -> Iterator[Event]:
    """Pause a member of an array."""
    run.keep_last([variant])  # it may be stopped before it is in an array again
    made = yield from rebuild.take_out(run, [variant], ev.PAUSED, "paused by request", f"#{variant} was paused")
    run.trainer.requested.paused[variant] = made[1]


def _resume(trainer: Schedule, run: Progress | None, request: Resume) -> Iterator[Event]:
    variant = _number(request.variant)
    if where(trainer, run, variant) != PAUSED:
        raise StudyError("is not paused", where=f"resume #{variant}")
    if variant in trainer.requested.held:
        trainer.requested.held.discard(variant)
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, "resumed")
        return
    state = trainer.requested.paused.pop(variant)
    trainer.put_first([trainer.find(variant)[0]], [state])
    yield ev.MemberChanged(time.time(), variant, ev.WAITING, "resumed")


def _stop(trainer: Schedule, run: Progress | None, request: Stop) -> Iterator[Event]:
    variant = _number(request.variant)
    if run is not None and variant in run.members.ids:
        yield from run.leave([variant], ev.STOPPED, "stopped by request")
        return
    if variant in trainer.requested.paused:
        del trainer.requested.paused[variant]
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, "stopped by request")
        return
    trainer.requested.held.discard(variant)
    found = where(trainer, run, variant)
    trainer.early_stops.add(variant)
    if found != ENDED:  # what it has learnt is kept when its array is built
        why = "stopped by request" if found == BEGUN else "stopped before it started"
        yield ev.MemberChanged(time.time(), variant, ev.STOPPED, why)


def _delete(trainer: Schedule, run: Progress | None, request: Delete) -> Iterator[Event]:
    variant, reason = request.variant, "deleted by request"
    if where(trainer, run, variant) == TRAINING and run is not None:
        yield from run.report(always=True)
    trainer.requested.deleted.add(variant)
    trainer.requested.held.discard(variant)
    trainer.requested.paused.pop(variant, None)
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
    group, place = trainer.find(variant)
    old, allowed = group.rows[place], editing.changeable(trainer.settings.family.phases)
    for name in request.changes:
        if name not in allowed:
            remedy = "clone the member: control.clone(...)"
            raise StudyError("can't be changed while it trains", where=name, got=request.changes[name],
                             accepted=", ".join(allowed), remedy=remedy)  # fmt: skip
    changes = {name: value for name, value in request.changes.items() if old[name] != value}
    if not changes:
        return
    row, span = {**old, **changes}, trainer.span(group, variant)
    editing.check(old, row, span)
    if found == TRAINING and run is not None:
        at = run.members.ids.index(variant)
        editing.set_values(run.step, run.rows[at], row, span, tuple(changes))
    elif found != WAITING:
        trainer.requested.change(variant, changes)
    noted(trainer, run, variant, changes)
    epoch, step = reached(trainer, run, variant)
    yield ev.MemberEdited(time.time(), variant, "set", None, True, epoch, step, changes, "by request")


def _clone(trainer: Schedule, run: Progress | None, request: Clone) -> Iterator[Event]:
    source, owner, requested = request.variant, trainer.owner, trainer.requested
    found = where(trainer, run, source)
    what = f"clone #{source}"
    if owner is None:
        raise StudyError("nothing takes it in", where=what)
    if request.warm and found in (ENDED, WAITING):
        why = "has ended" if found == ENDED else "has not begun"
        raise StudyError(f"{why}, and has no state to begin with", where=what, remedy="clone it cold: warm=False")
    if request.warm and source in requested.held and source not in requested.paused:
        raise StudyError("is in an array that waits", where=what, remedy="resume it first, or clone it cold")
    if found == TRAINING and request.warm and run is not None:
        yield from run.report(always=True)
        if source not in run.members.ids:
            raise StudyError("has ended", where=what)
    [planned] = owner.adopt(request, requested.edits.get(source, {}), trainer.find(source))
    variant = planned.ids[0]
    trainer.arrays.append(planned)
    if request.warm and source in requested.budgets:
        requested.budgets[variant] = requested.budgets[source]
    if not request.warm:
        trainer.put_last(planned)
        yield cloning.edited(request, planned, 0, 0, "from the start, after the arrays that wait")
        yield ev.PlanMade(time.time(), trainer.records())
    elif found == TRAINING and run is not None:
        yield from cloning.warm(run, request, planned)
    elif found == PAUSED and (state := requested.paused[source]) is not None:
        yield from cloning.alone(trainer, run, request, planned, state, f"#{source} is paused")
    else:  # the array of its source waits: the clone is made when that is built
        requested.clones[variant] = request
        yield ev.PlanMade(time.time(), trainer.records())


def _kept(trainer: Schedule, run: Progress | None) -> Iterator[Event]:
    """A checkpoint, so that what was asked is not lost."""
    if run is not None and run.members.ids:
        yield from run.save()
    else:
        group = trainer.arrays[0] if run is None else run.group
        yield from trainer.save_after(group, {} if run is None else run.members.unsaved())


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
