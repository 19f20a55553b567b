"""What a run does when something is asked of it: of the whole here, of a member in `steering`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import steering
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.schedule import Schedule


def answer(run: Progress, request: ev.Request) -> Iterator[Event]:
    """Do what is asked, between two steps; another array that takes turns does it in its own."""
    other = _concerned(run, request)
    if other is not None:
        other.asked.append(request)
        return
    if isinstance(request, ev.Stop) and request.variant is None:
        yield from _stop_all(run)
    elif isinstance(request, ev.Pause) and request.variant is None:
        yield from _pause(run)
    elif not isinstance(request, ev.Resume) or request.variant is not None:
        yield from steering.answer(run.trainer, run, request)


def answer_between(trainer: Schedule, request: ev.Request) -> Iterator[Event]:
    """Do what is asked between two arrays; a pause of the whole run is left to the next one."""
    if isinstance(request, ev.Pause) and request.variant is None:
        trainer.control.put(request)
    elif not isinstance(request, ev.Resume) or request.variant is not None:
        yield from steering.answer(trainer, None, request)


def wait_for_paused(trainer: Schedule) -> Iterator[Event]:
    """Nothing is left to train but members that are paused: wait until one is resumed, or the run is to stop."""
    count = len(trainer.asked.paused)
    yield ev.RunChanged(time.time(), ev.PAUSED, f"only paused members are left ({count}): resume, stop or delete them")
    while trainer.asked.paused and not trainer.waiting:
        requests = trainer.control.wait(0.5)
        if not requests:
            yield ev.Heartbeat(time.time())
        for request in requests:
            if request == ev.Stop():
                trainer.stopped = True
                return
            if request == ev.Resume():  # of the whole run, which these members keep from going on
                for variant in list(trainer.asked.paused):
                    yield from steering.answer(trainer, None, ev.Resume(variant))
            elif request != ev.Pause():
                yield from steering.answer(trainer, None, request)
    trainer.clock.skip()
    yield ev.RunChanged(time.time(), ev.RUNNING)


def _concerned(run: Progress, request: ev.Request) -> Progress | None:
    """The other array whose member a request is about; None if there is none."""
    variant = getattr(request, "variant", None)
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
            if request == ev.Resume():
                run.trainer.clock.skip()
                for one in _together(run):
                    one.last_told = time.perf_counter()
                yield ev.RunChanged(time.time(), ev.RUNNING)
                return
            if request != ev.Pause():
                yield from answer(run, request)
            if run.trainer.stopped:
                return


def _stop_all(run: Progress) -> Iterator[Event]:
    for one in _together(run):
        yield from one.tell(always=True)
        one.keep_last(one.members.ids)
    yield from run.save()
    run.trainer.stopped = True
    for member in [member for one in _together(run) for member in one.members.active]:
        yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, ev.WITH_RUN)
