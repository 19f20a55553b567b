"""Starting runs; the workers of this kernel."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal

import cloudpickle

from hfta_nb.errors import WorkerError
from hfta_nb.events import Control, Request
from hfta_nb.executors.handle import RunHandle
from hfta_nb.executors.job import Job, perform
from hfta_nb.executors.worker import Worker
from hfta_nb.history import History

MAX_IDLE = 2
"""Warm workers that are kept; each holds torch in memory."""

_lock = threading.Lock()
_idle: list[Worker] = []
_all: set[Worker] = set()


def start(
    study: Any,
    *,
    kind: Literal["worker", "inline"] = "worker",
    resume: bool = False,
    job: Literal["run", "check"] = "run",
    arguments: Mapping[str, Any] | None = None,
) -> RunHandle:
    """Start a study's run, or a check of it, and return at once.

    Args:
        study: what to run.
        kind: "worker": a process of its own, the default; a warm one is reused, and two runs at a time have two.
            "inline": a thread of this process, for tests and debugging: any busy cell starves it.
        resume: carry on from the last checkpoint.
        job: "run", or "check" for the comparison with serial training.
        arguments: of the check.

    Returns:
        The handle of the run.

    Raises:
        WorkerError: the study holds something that can't be sent to another process.
    """
    task = Job(study, job, resume, dict(arguments or {}))
    history = _history_so_far(study) if resume or job == "check" else History()
    return _start_inline(task, history) if kind == "inline" else _start_worker(task, history)


def prewarm() -> None:
    """Start a worker in the background if none is idle, so that the first run need not wait for it."""
    with _lock:
        if not _idle:
            _idle.append(_new())


def close_all() -> None:
    """End all workers, busy ones too."""
    with _lock:
        workers = list(_all)
        _all.clear()
        _idle.clear()
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.join(5)


atexit.register(close_all)


def _history_so_far(study: Any) -> History:
    history = History()
    store = getattr(study, "store", None)
    if store is not None:
        for event, _ in store.events():
            history.add(event)
    return history


def _start_worker(task: Job, history: History) -> RunHandle:
    payload = _pack(task)
    with _lock:
        alive = [w for w in _idle if w.alive]
        _idle[:] = alive
        worker = _idle.pop() if _idle else _new()
    handle = RunHandle(worker.request, history)
    worker.start(payload, handle)
    return handle


def _pack(task: Job) -> bytes:
    try:
        body = cloudpickle.dumps(task)
    except Exception as error:
        raise WorkerError(
            f"the study can't be sent to a worker process ({type(error).__name__}: {error})",
            where=str(getattr(task.study, "name", "study")),
            remedy="open files, locks, generators and the like must be made inside the build function",
        ) from error
    packed: bytes = cloudpickle.dumps((list(sys.path), body))
    return packed


def _new() -> Worker:
    worker = Worker(_release)
    _all.add(worker)
    return worker


def _release(worker: Worker) -> None:
    with _lock:
        dead = [w for w in _all if not w.alive]
        for gone in dead:
            _all.discard(gone)
        keep = worker.alive and worker in _all and len(_idle) < MAX_IDLE
        if keep:
            _idle.append(worker)
        else:
            _all.discard(worker)
    if not keep:
        worker.close()


def _start_inline(task: Job, history: History) -> RunHandle:
    control = Control()

    def send(request: Request) -> None:
        control.post(request)

    handle = RunHandle(send, history)

    def work() -> None:
        reason = perform(task, control, handle.deliver)
        handle.finish(WorkerError(reason, where="run") if reason else None)

    threading.Thread(target=work, name="hfta_nb inline run", daemon=True).start()
    return handle
