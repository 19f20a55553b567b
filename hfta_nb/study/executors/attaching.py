"""Runs of other processes: a handle that follows what is written in their directory, and posts requests there."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from hfta_nb.errors import HftaError, WorkerError
from hfta_nb.records import events as ev
from hfta_nb.records.history import History
from hfta_nb.study.executors.handle import OUTPUT, RunHandle, remedy
from hfta_nb.workers.processes.log import Log

LOOK_INTERVAL_S = 0.5
"""A run of another process is looked at this often."""


def attach(study: Any) -> RunHandle:
    """Follow and control a study that another process runs, such as ``hfta-nb tune`` or ``hfta-nb run``.

    Args:
        study: as loaded from the directory of the run (`Study.load`).

    Returns:
        A handle as that of `start`. Requests to its ``control`` (stop, pause, pin, add, ...) reach the other process
        within about a second. It is followed for as long as the handle is kept.

    Raises:
        WorkerError: nobody runs the study now.
        StoreError: the directory can't be read.
    """
    store, where = study.store, str(study.directory)
    if store.running is False:
        raise WorkerError("nobody runs this study now", where=where, remedy="run it: study.run(resume=True)")
    history, offset = History(), 0
    for event, number in store.events():
        offset = number
        if history.run is not None or isinstance(event, ev.RunStarted):  # else the first event is damaged
            history.add(event)
    handle = RunHandle(store.requests.post, history)
    handle.joins(Log(study.directory / OUTPUT))
    work = (weakref.ref(handle), store, offset, where)
    threading.Thread(target=_follow, args=work, name="hfta_nb attached run", daemon=True).start()
    return handle


def _follow(reference: weakref.ref[RunHandle], store: Any, offset: int, where: str) -> None:
    """Deliver what is written, until nobody runs the study any more."""
    last: ev.RunChanged | None = None
    pause = threading.Event()
    while True:
        handle = reference()
        if handle is None:
            return
        try:
            running = store.running  # looked at first: what came before it ended is read after that
            for event, number in store.events(offset):
                offset = number
                if last is not None:  # whatever comes now is of another run
                    running = False
                    break
                if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                    last = event  # the handle has ended with this, which it has not while others come
                elif handle.history.run is not None or isinstance(event, ev.RunStarted):
                    handle.deliver(event)
        except HftaError as error:
            _lost(handle, f"can't be followed any more ({error.message})", where)
            return
        if running is False or (running is None and last is not None):
            if last is None:
                _lost(handle, "the process that ran it has ended before the run did", where)
            else:
                handle.finish(event=last)
            return
        del handle
        pause.wait(LOOK_INTERVAL_S)


def _lost(handle: RunHandle, what: str, where: str) -> None:
    error = WorkerError(what, where=where, remedy=remedy(handle.history))
    handle.finish(error, ev.RunChanged(time.time(), ev.INTERRUPTED, error.message))
