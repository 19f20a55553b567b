"""The jobs of a study and how they end, both inline and in a worker."""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol, cast

from hfta_nb.errors import HftaError, StoreError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event

LONGEST_REASON = 500


class Runnable(Protocol):
    """A study that can run; each other job calls another of its methods, for example `check_events`."""

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]: ...


def _run(study: Any, control: Control, resume: bool, arguments: Mapping[str, Any]) -> Iterator[Event]:
    return cast("Iterator[Event]", study.run(control, resume=resume, **arguments))


def _check(study: Any, control: Control, resume: bool, arguments: Mapping[str, Any]) -> Iterator[Event]:
    """Run a check. It does not read requests, so it is stopped here, between two events."""
    events = cast("Generator[Event]", study.check_events(**arguments))
    for event in events:
        yield event
        if any(request == ev.Stop() for request in control.poll()):
            events.close()
            yield ev.RunChanged(time.time(), ev.STOPPED, "stopped by request")
            return


def _try(study: Any, control: Control, resume: bool, arguments: Mapping[str, Any]) -> Iterator[Event]:
    return cast("Iterator[Event]", study.forward_events(**arguments))


def _run_again(study: Any, control: Control, resume: bool, arguments: Mapping[str, Any]) -> Iterator[Event]:
    from hfta_nb.study.running import restart  # it imports torch

    where = {name: arguments[name] for name in ("executor", "workers", "address") if name in arguments}
    return restart(study, control, **where)


def _profile(study: Any, control: Control, resume: bool, arguments: Mapping[str, Any]) -> Iterator[Event]:
    return cast("Iterator[Event]", study.profile_events(**arguments))


AGAIN = "run again"
"""The job of a process that continues after another one has crashed before the first checkpoint."""

Job = Callable[[Any, Control, bool, Mapping[str, Any]], Iterator[Event]]
JOBS: dict[str, Job] = {"run": _run, "check": _check, "try": _try, "profile": _profile}


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
        for event in (_run_again if job == AGAIN else JOBS[job])(study, control, resume, arguments):
            if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                last = event
            else:
                emit(event)
    except BaseException as error:  # also sys.exit() in user code
        return failed(_rescued(study, error))
    return last or ev.RunChanged(time.time(), ev.COMPLETE)


def _rescued(study: Any, error: BaseException) -> BaseException:
    if not isinstance(error, StoreError):
        return error
    from hfta_nb.study import rescued  # it imports torch

    return rescued(study, error)


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
