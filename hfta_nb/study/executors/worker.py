"""The kernel's end of one worker process."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hfta_nb.errors import WorkerError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Request
from hfta_nb.records.history import History
from hfta_nb.study.executors.handle import RunHandle, remedy
from hfta_nb.study.executors.jobs import AGAIN
from hfta_nb.workers.processes import cores, frames
from hfta_nb.workers.processes.ends import in_words, is_crash
from hfta_nb.workers.processes.log import Log
from hfta_nb.workers.processes.spawning import pipes_of, spawn

COMMAND = (sys.executable, "-P", "-m", "hfta_nb.study.executors.worker_main")
"""-P: a file beside the notebook with the name of a standard module must not prevent the worker from starting."""

LIBRARY_SETTINGS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_LIBRARY_PATH", cores.OVERRIDE),
)
"""Environment variables that users set in cells and libraries read once: a worker that was started with other values
can't be reused. Listed explicitly, because scikit-learn and torch set variables when they are imported.
"""

_logger = logging.getLogger("hfta_nb")
_DRAIN_S = 2.0
_CHUNK_BYTES = 1 << 16
_RESTARTS = 3
"""The most restarts of a run; each time another computation is given up."""


class Worker:
    """A process that runs one job at a time.

    Three threads belong to it: one reads events and delivers them, one reads what it prints (a chatty job must not
    block on a full pipe), and one waits for its end; a fourth writes. None of them ever prints.

    Args:
        on_idle: called when a job is done, on the thread that delivers events, before the job's last event.
        on_exit: called after the process has ended.
        another: starts another worker.

    Attributes:
        ready: whether it has finished its imports.
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
        self.ready = False
        self._files: dict[str, int] = {}
        self._log = Log()
        self._own = cores.environment()
        self._process = spawn(COMMAND, self._own)
        self.pid = self._process.pid
        to, events, printed = pipes_of(self._process)
        self._sender = frames.Sender(to, f"hfta_nb to worker {self.pid}")
        self._fault: Exception | None = None
        self._killed = False
        self._reader = self._thread("events", self._read_events, events)
        self._log_reader = self._thread("log", self._read_log, printed)
        self._thread("exit", self._wait_for_exit)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def fresh(self) -> bool:
        """Whether it is equivalent to a new process: same settings of libraries, same local modules."""
        return self._settings == _settings() and all(_modified(file) == time for file, time in self._files.items())

    def begin(
        self,
        header: dict[str, Any],
        payload: bytes,
        history: History,
        again: Callable[[], bytes],
        handle: RunHandle | None = None,
    ) -> RunHandle:
        """Start a job.

        Args:
            header: the job; see `hfta_nb.study.executors.child`.
            payload: the pickled study.
            history: the run's history so far.
            again: pickles the study again, if the run must continue in another process.
            handle: the handle of a run that began in another process; by default a new one.
        """
        with self._lock:
            if self._run:  # output of the start belongs to the first job
                self._log = Log()
            self._run += 1
            ask = functools.partial(self._ask, self._run)
            begun = handle
            handle = handle or RunHandle(ask, history, log=self._log, pid=self.pid, kill=self.kill)
            self._handle, self._job = handle, (header, again)
        self._sender.put({"run": self._run, "job": header | {"keep": list(self._own)}}, payload)
        if begun is not None:
            begun.moved(ask, self._log, self.pid, self.kill)
        if not self.alive:
            self._thread("exit", self._wait_for_exit)  # if it died before it got the job, nobody else would report it
        return handle

    def kill(self) -> None:
        """End the process at once on request; a run in progress is then stopped."""
        self._killed = True
        self._process.kill()

    def reap(self, timeout_s: float) -> None:
        """Wait until the process has ended."""
        self._process.wait(timeout_s)

    def _ask(self, run: int, request: Request) -> None:
        self._sender.put({"run": run, "request": ev.to_json(request)})

    def _thread(self, name: str, target: Callable[..., None], *given: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=given, name=f"hfta_nb worker {self.pid} {name}", daemon=True)
        thread.start()
        return thread

    def _read_events(self, file: int) -> None:
        try:
            for message, _ in frames.read(file):
                self._take(message)
        except Exception as error:  # messages can't be understood, so end the worker
            self._fault = error
            self._process.kill()
        finally:
            os.close(file)

    def _take(self, message: frames.Message) -> None:
        if message.get("ready"):
            self.ready = True
            return
        handle = self._handle
        if handle is None or message.get("run") != self._run:
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

    def _read_log(self, file: int) -> None:
        try:
            while data := os.read(file, _CHUNK_BYTES):
                self._log.add(data)
        finally:
            os.close(file)

    def _wait_for_exit(self) -> None:
        code = self._process.wait()
        self._on_exit(self)
        # The pipes have its last messages. Don't wait for a child process of the job, which may hold them open.
        deadline = time.monotonic() + _DRAIN_S
        for reader in (self._reader, self._log_reader):
            reader.join(max(0.0, deadline - time.monotonic()))
        self._sender.close()
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._killed:
            handle.finish(event=ev.RunChanged(time.time(), ev.STOPPED, "the run was closed"))
            return
        words = in_words(code) if self._fault is None else f"sent what can't be read ({self._fault})"
        if self._goes_on(handle, code, words):
            return
        error = WorkerError(f"the worker process {words}", where=f"process {self.pid}", remedy=remedy(handle.history))
        handle.finish(error, ev.RunChanged(time.time(), ev.FAILED, error.message, handle.log))

    def _goes_on(self, handle: RunHandle, code: int, words: str) -> bool:
        """Continue in another process if this one crashed while it tried a computation; returns whether it does.

        That computation is not tried again. Other crashes could repeat, so the user decides.
        """
        header, again = self._job
        if handle.restarts >= _RESTARTS or header.get("job") not in ("run", AGAIN) or not is_crash(code):
            return False
        from hfta_nb.study.ended_trials import under_trial  # it imports torch

        tried = under_trial(self.pid, header["environment"])
        if not tried:
            return False
        handle.moves(f"the worker process {words} while it tried {tried}; that way is not tried again")
        resume = handle.history.checkpoint is not None
        header = {**header, "job": "run" if resume else AGAIN, "resume": resume}
        try:
            payload = again()
            self._another().begin(header, payload, handle.history, again, handle)
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
