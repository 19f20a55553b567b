"""The jobs of a study and how they end, both inline and in a worker."""

from __future__ import annotations

import contextlib
import errno
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol

from hfta_nb.errors import HftaError, StoreError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.study import rescued
from hfta_nb.study.running import begun

LONGEST_REASON = 500


class Runnable(Protocol):
    """A study that can run; each other job calls another of its methods, for example `check_events`."""

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]: ...


AGAIN = "run again"
"""The job of a process that continues after another one has crashed before the first checkpoint."""

JOBS = {
    "run": "run",
    "check": "check_events",
    "try": "forward_events",
    "profile": "profile_events",
    "speed": "speed_events",
}
"""The method of a study that does a job."""


def _events(
    study: Any, job: str, control: Control, resume: bool, arguments: Mapping[str, Any]
) -> Generator[Event, None, None]:
    if job == AGAIN:
        where = {name: arguments[name] for name in ("executor", "workers", "address") if name in arguments}
        yield from begun(study, control, again=True, **where)
    elif job == "run":
        yield from study.run(control, resume=resume, **arguments)
    else:
        with contextlib.closing(getattr(study, JOBS[job])(**arguments)) as events:
            for event in events:
                yield event
                if any(request == ev.Stop() for request in control.poll()):  # the method itself reads no requests
                    yield ev.RunChanged(time.time(), ev.STOPPED, "stopped by request")
                    return


def perform(
    study: Any,
    job: str,
    control: Control,
    resume: bool,
    arguments: Mapping[str, Any],
    emit: Callable[[Event], None],
) -> ev.RunChanged:
    """Do a job to its end.

    Args:
        emit: called with each event except the last.

    Returns:
        The last event, with the final state, after which the next job may start. FAILED, with the traceback, if the job
        raised.
    """
    last: ev.RunChanged | None = None
    try:
        for event in _events(study, job, control, resume, arguments):
            if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                last = event
            else:
                emit(event)
    except BaseException as error:  # also sys.exit() in user code
        return failed(rescued(study, error))
    return last or ev.RunChanged(time.time(), ev.COMPLETE)


def failed(error: BaseException) -> ev.RunChanged:
    """The last event of a job that raised: the error in one line, and its traceback. A full disk stops a run."""
    detail = "".join(traceback.format_exception(error))
    stopped = isinstance(error, StoreError) and error.errno == errno.ENOSPC
    return ev.RunChanged(time.time(), ev.STOPPED if stopped else ev.FAILED, one_line(error), detail)


def one_line(error: BaseException) -> str:
    """An error's type and message, on one line."""
    message = " ".join((error.message if isinstance(error, HftaError) else str(error)).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
