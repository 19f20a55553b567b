"""A run on a thread of this process: for tests and debugging. A busy cell takes its speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from hfta_nb.records.events import FAILED, STOPPED, Control, Event, RunChanged
from hfta_nb.records.history import History
from hfta_nb.study.executors.handle import RunHandle
from hfta_nb.study.executors.jobs import perform


class _Left(BaseException):
    """Raised in a job that its owner closed and that did not stop."""


def begin(
    study: Any, job: str, resume: bool, arguments: Mapping[str, Any], history: History, detach: bool
) -> RunHandle:
    """Run a job of a study on a new thread, which ends with this process."""
    left = threading.Event()
    control = Control()
    handle = RunHandle(control.post, history, kill=left.set)

    def emit(event: Event) -> None:
        if left.is_set():
            raise _Left("the run was closed")
        handle.deliver(event)

    def work() -> None:
        last = perform(study, job, control, resume, arguments, emit)
        if left.is_set() and last.state == FAILED:
            last = RunChanged(time.time(), STOPPED, "the run was closed")
        handle.finish(event=last)

    threading.Thread(target=work, name="hfta_nb inline run", daemon=True).start()
    return handle
