"""The kernel's end of one worker process."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfta_nb.errors import WorkerError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Request
from hfta_nb.study.ended_trials import under_trial
from hfta_nb.study.executors.handle import RunHandle, remedy
from hfta_nb.study.executors.jobs import AGAIN
from hfta_nb.study.executors.study_task import StudyTask
from hfta_nb.workers.processes import cores
from hfta_nb.workers.processes.child import packed
from hfta_nb.workers.processes.child_process import ChildProcess
from hfta_nb.workers.processes.ends import RESTARTS
from hfta_nb.workers.processes.frames import Message
from hfta_nb.workers.processes.log import Log

LIBRARY_SETTINGS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_LIBRARY_PATH", cores.OVERRIDE),
)
"""Environment variables that users set in cells and libraries read once: a worker that was started with other values
can't be reused. Listed explicitly, because scikit-learn and torch set variables when they are imported.
"""

_logger = logging.getLogger("hfta_nb")


class Worker:
    """A process that runs one job at a time.

    Args:
        on_idle: called when a job is done, on the thread that delivers events, before the job's last event.
        on_exit: called after the process has ended.
        another: starts another worker.

    Attributes:
        child: the process.
    """

    def __init__(
        self, on_idle: Callable[[Worker], None], on_exit: Callable[[Worker], None], another: Callable[[], Worker]
    ) -> None:
        self._on_idle, self._on_exit, self._another = on_idle, on_exit, another
        self._settings = _settings()
        self._lock = threading.Lock()
        self._handle: RunHandle | None = None
        self._job: tuple[dict[str, Any], Callable[[], bytes]] = {}, bytes
        self._run = 0
        self._files: dict[str, int] = {}
        self._killed = False
        self._end: tuple[str, bool] | None = None
        self.child = ChildProcess("study", cores.environment(), self._hear, self._ended, session=True)
        self.pid = self.child.pid
        self.child.send({"task": {}}, packed(StudyTask))

    @property
    def alive(self) -> bool:
        return self.child.alive

    @property
    def detached(self) -> bool:
        """Whether it does a job that goes on without this process."""
        return self._handle is not None and "outlives" in self._job[0]

    @property
    def fresh(self) -> bool:
        """Whether it is equivalent to a new process: same settings of libraries, same local modules."""
        return self._settings == _settings() and all(_modified(file) == time for file, time in self._files.items())

    def begin(self, handle: RunHandle, header: dict[str, Any], payload: bytes, again: Callable[[], bytes]) -> None:
        """Start a job.

        Args:
            handle: of the run, which may have begun in another process.
            header: the job; see `hfta_nb.study.executors.study_task`.
            payload: the pickled study.
            again: pickles the study again, if the run must continue in another process.
        """
        with self._lock:
            if self._run or "output" in header:  # output of the start belongs to the first job
                self.child.log = Log(Path(header["output"]) if "output" in header else None)
            self._run += 1
            self._handle, self._job, end = handle, (header, again), self._end
        self.child.send({"call": self._run, **header}, payload)
        handle.moved(functools.partial(self._ask, self._run), self.child.log, self.pid, self.kill)
        if end is not None:  # it died before it got the job, which nobody else would report
            threading.Thread(target=self._over, args=end, name="hfta_nb worker end", daemon=True).start()

    def kill(self) -> None:
        """End the process at once on request; a run in progress is then stopped."""
        self._killed = True
        self.child.kill()

    def _ask(self, run: int, request: Request) -> None:
        self.child.send({"call": run, "request": ev.to_json(request)})

    def _hear(self, message: Message, _: bytes) -> None:
        handle = self._handle
        if handle is None or message.get("call") != self._run:
            return
        event = ev.from_json(message["event"])
        if not message.get("done"):
            handle.deliver(event)  # type: ignore[arg-type]
            return
        self._files = message["files"]
        with self._lock:
            self._handle, self._job = None, ({}, bytes)  # let the study be freed
        self._on_idle(self)
        handle.finish(event=event)  # type: ignore[arg-type]

    def _ended(self, words: str, crashed: bool) -> None:
        self._on_exit(self)
        with self._lock:
            self._end = words, crashed
        self._over(words, crashed)

    def _over(self, words: str, crashed: bool) -> None:
        """Report the end of the process to the job that it had, if it had one."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._killed:
            handle.finish(event=ev.RunChanged(time.time(), ev.STOPPED, "the run was closed"))
            return
        if crashed and self._goes_on(handle, words):
            return
        error = WorkerError(f"the worker process {words}", where=f"process {self.pid}", remedy=remedy(handle.history))
        handle.finish(error, ev.RunChanged(time.time(), ev.INTERRUPTED, error.message, handle.log))

    def _goes_on(self, handle: RunHandle, words: str) -> bool:
        """Continue in another process if this one tried a computation when it crashed; returns whether it does.

        That computation is not tried again. Other crashes could repeat, so the user decides.
        """
        header, again = self._job
        if handle.restarts >= RESTARTS or header.get("job") not in ("run", AGAIN):
            return False
        tried = under_trial(self.pid, header["surroundings"]["environment"])
        if not tried:
            return False
        handle.moves(f"the worker process {words} while it tried {tried}; that way is not tried again")
        resume = handle.history.checkpoint is not None
        header = {**header, "job": "run" if resume else AGAIN, "resume": resume}
        try:
            payload = again()
            self._another().begin(handle, header, payload, again)
        except Exception:
            _logger.exception("the run can't go on in another process")
            return False
        return True


def _settings() -> dict[str, str]:
    return {name: os.environ[name] for name in LIBRARY_SETTINGS if name in os.environ}


def _modified(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
