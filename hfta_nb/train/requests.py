"""What an array that trains does when something is asked of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hfta_nb import events as ev
from hfta_nb.events import Event
from hfta_nb.train.progress import Progress


def answer(run: Progress, request: ev.Request) -> Iterator[Event]:
    """Do what is asked, between two steps; another array that takes turns does it in its own."""
    other = _concerned(run, request)
    if other is not None:
        other.asked.append(request)
        return
    if isinstance(request, ev.Stop) and request.variant is None:
        yield from _stop_all(run)
    elif isinstance(request, ev.Stop):
        if request.variant in run.members.ids:
            yield from run.leave([request.variant], ev.STOPPED, "stopped by request")
        elif request.variant is not None:
            run.trainer.early_stops.add(request.variant)
    elif isinstance(request, ev.Prune):
        if request.variant not in run.trainer.pinned:
            yield from run.leave([request.variant], ev.PRUNED, request.reason)
    elif isinstance(request, ev.Pin):
        run.trainer.pin(request)
    elif isinstance(request, ev.Add):
        yield from run.trainer.added(request)
    elif isinstance(request, ev.Pause):
        yield from _pause(run)


def _concerned(run: Progress, request: ev.Request) -> Progress | None:
    """The other array whose member a request is about; None if there is none."""
    variant = request.variant if isinstance(request, ev.Stop | ev.Prune) else None
    others = [other for other in _together(run) if other is not run and variant in other.members.ids]
    return others[0] if others else None


def _together(run: Progress) -> list[Progress]:
    """The arrays that take turns with this one, which comes first, as far as they are built."""
    others = [other for other in run.trainer.training if isinstance(other, Progress) and other is not run]
    return [run, *(other for other in others if hasattr(other, "members"))]


def _pause(run: Progress) -> Iterator[Event]:
    for one in _together(run):
        yield from one.tell(always=True)
    yield from run.save()
    yield ev.RunChanged(time.time(), ev.PAUSED)
    while True:
        requests = run.trainer.control.wait(0.5)
        if not requests:
            yield ev.Heartbeat(time.time())
        for request in requests:
            if isinstance(request, ev.Resume):
                run.trainer.clock.skip()
                for one in _together(run):
                    one.last_told = time.perf_counter()
                yield ev.RunChanged(time.time(), ev.RUNNING)
                return
            if not isinstance(request, ev.Pause):
                yield from answer(run, request)
            if run.trainer.stopped:
                return


def _stop_all(run: Progress) -> Iterator[Event]:
    for one in _together(run):
        yield from one.tell(always=True)
    yield from run.save()
    run.trainer.stopped = True
    for member in [member for one in _together(run) for member in one.members.active]:
        yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, "the run was stopped")
