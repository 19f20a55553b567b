"""The kernel's side of a worker process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.events import Event, Request, from_json, to_json
from hfta_nb.executors import frames, threads
from hfta_nb.executors.frames import Frame
from hfta_nb.executors.handle import RunHandle

_LOG_LINES = 400


class Worker:
    """One worker process; does one job at a time.

    Args:
        on_idle: called, on a reader thread, when a job is over and the process can take another.
    """

    def __init__(self, on_idle: Callable[[Worker], None]) -> None:
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._handle: RunHandle | None = None
        self._job = 0
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._closed = False
        self.ready = threading.Event()
        # Not a new session: it would outlive a restart of the kernel.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hfta_nb.executors.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
        self._errors = threading.Thread(target=self._read_errors, name="hfta_nb worker log", daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, name="hfta_nb worker events", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines that the process wrote."""
        return "".join(self._lines)

    def start(self, payload: bytes, handle: RunHandle) -> None:
        """Give the process a job; its events go to the handle."""
        with self._lock:
            self._job += 1
            self._handle = handle
            job = self._job
        handle.pid = self.pid
        handle._log = lambda: self.log
        handle._close = self.kill
        self._send(Frame(frames.JOB, job, payload))

    def request(self, request: Request) -> None:
        """Pass a request on to the job."""
        if self._handle is not None and not self._handle.ended:
            self._send(Frame(frames.REQUEST, self._job, json.dumps(to_json(request)).encode()))

    def kill(self) -> None:
        """End the process at once, because somebody asked for it."""
        self._closed = True
        self._process.kill()

    def close(self) -> None:
        """Let the process end: it does when its standard input closes."""
        self._closed = True
        with self._lock:
            stdin = self._process.stdin
            if stdin is not None and not stdin.closed:
                try:
                    stdin.close()
                except OSError:
                    self._process.kill()

    def join(self, timeout_s: float) -> None:
        """Wait for the process to have ended; kill it if that takes too long."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, frame: Frame) -> None:
        assert self._process.stdin is not None  # opened as a pipe
        try:
            with self._lock:
                frames.write(self._process.stdin, frame)  # type: ignore[arg-type]
        except (OSError, ValueError):
            return  # the process is gone, which its reader tells of

    def _read(self) -> None:
        assert self._process.stdout is not None  # opened as a pipe
        while True:
            frame = frames.read(self._process.stdout)  # type: ignore[arg-type]
            if frame is None:
                break
            handle = self._handle
            if frame.kind == frames.READY:
                self.ready.set()
            elif handle is None or frame.job != self._job:
                continue
            elif frame.kind == frames.EVENT:
                event = from_json(json.loads(frame.payload))
                if isinstance(event, Event):
                    handle.deliver(event)
            elif frame.kind == frames.END:
                self._end(handle, frame.payload.decode())
        self._gone()

    def _end(self, handle: RunHandle, reason: str) -> None:
        with self._lock:
            self._handle = None
        self._on_idle(self)
        handle.finish(WorkerError(reason, where="worker") if reason else None)

    def _gone(self) -> None:
        code = self._process.wait()
        asked = self._closed
        self._errors.join(5)
        self.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self.ready.set()
        handle = self._handle
        if handle is None:
            return
        how = "was closed" if asked else _how_it_ended(code)
        remedy = "resume the run from its last checkpoint"
        error = WorkerError(f"the worker process {how}", where=f"worker {self.pid}", remedy=remedy)
        handle.finish(error, ev.RunChanged(time.time(), ev.FAILED, error.message, self.log))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None  # opened as a pipe
        with self._process.stderr as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace")[:2000])


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **threads.environment(threads.threads()), "PYTHONPATH": path}


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
