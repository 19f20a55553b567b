"""The parent's end of a worker: a process that serves this one; see `hfta_nb.workers.processes.child`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from hfta_nb.errors import WorkerError
from hfta_nb.workers.processes import frames
from hfta_nb.workers.processes.child import Send
from hfta_nb.workers.processes.ends import in_words, is_crash
from hfta_nb.workers.processes.log import Log

COMMAND = (sys.executable, "-P", "-m", "hfta_nb.workers.processes.child_main")
"""-P: a file beside the notebook with the name of a standard module must not prevent the worker from starting."""

Ended: TypeAlias = Callable[[str, bool], None]
"""Takes how a child ended, in words, and whether it crashed, which computing may have caused."""

EXIT_S = 5.0
"""How long a worker that was killed may take to end."""

_CHUNK_BYTES = 1 << 16
_DRAIN_S = 2.0


class Child(Protocol):
    """A worker as its parent sees it: a `ChildProcess`, or an actor of Ray.

    Attributes:
        name: for people: "process 1234".
        ready: whether it has made its task.
        log: the end of what it prints, if that is heard.
    """

    name: str
    ready: bool
    log: Log

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""

    def send(self, message: frames.Message, blob: bytes = b"") -> None:
        """Send a message; it is lost if the child is gone."""

    def kill(self) -> None:
        """End it at once."""

    def reap(self) -> None:
        """Wait a while until it has ended."""


class ChildProcess:
    """A process that does what this one sends.

    Threads of its own read what it reports and what it prints (a chatty task must not block on a full pipe), wait for
    its end, and write. None of them ever prints.

    Args:
        role: what it is for.
        own: environment variables that differ from those of this process.
        hear: called with each message, on a thread that reads.
        ended: called once, after its last message.
        captured: whether the end of what it prints is kept, in `log`; else it is printed where this process prints.
        session: whether it has a session of its own, which signals to this process and its group do not reach.
    """

    def __init__(
        self,
        role: str,
        own: Mapping[str, str],
        hear: Send,
        ended: Ended,
        captured: bool = True,
        session: bool = False,
    ) -> None:
        self._hear, self._ended, self._fault = hear, ended, ""
        self.ready, self.log = False, Log()
        self._process = spawn((*COMMAND, role), own, captured, session)
        self.pid = self._process.pid
        self.name = f"process {self.pid}"
        to, said, *printed = pipes_of(self._process)
        self._sender = frames.Sender(to, f"hfta_nb to {self.name}")
        readers = [self._thread("reports", self._read, said)]
        readers += [self._thread("log", self._read_log, file) for file in printed]
        self._thread("end", self._wait, readers)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: frames.Message, blob: bytes = b"") -> None:
        self._sender.put(message, blob)

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> None:
        """Wait until it has ended.

        Raises:
            WorkerError: it does not.
        """
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired as error:
            raise WorkerError("the worker process can't be ended", where=self.name) from error

    def _thread(self, what: str, target: Callable[..., None], *given: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=given, name=f"hfta_nb {self.name} {what}", daemon=True)
        thread.start()
        return thread

    def _read(self, file: int) -> None:
        try:
            for message, blob in frames.read(file):
                if "error" in message:  # it does nothing more, and takes a while to end by itself
                    self._fault = message["error"]
                    self.kill()
                else:
                    self.ready = self.ready or "ready" in message
                    self._hear(message, blob)
        except Exception as error:  # messages can't be understood, so end the process
            self._fault = f"sent what can't be read ({type(error).__name__}: {error})"
            self.kill()
        finally:
            os.close(file)

    def _read_log(self, file: int) -> None:
        try:
            while data := os.read(file, _CHUNK_BYTES):
                self.log.add(data)
        finally:
            os.close(file)

    def _wait(self, readers: list[threading.Thread]) -> None:
        code = self._process.wait()
        # The pipes have its last messages. Don't wait for a child process of it, which may hold them open.
        deadline = time.monotonic() + _DRAIN_S
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        self._sender.close()
        self._ended(self._fault or in_words(code), is_crash(code))


def spawn(
    command: Sequence[str], own: Mapping[str, str], captured: bool = True, session: bool = False
) -> subprocess.Popen[bytes]:
    """Start a worker process without forking, with interrupts blocked from the beginning.

    Args:
        command: its program; the id of this process is added.
        own: environment variables that differ from those of this process.
        captured: whether what it prints comes through a pipe; else it is printed where this process prints its errors.
        session: whether it has a session of its own.

    Raises:
        WorkerError: the system refuses.
    """
    # The package may be on sys.path only; the worker restores PYTHONPATH before any job.
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **own, "PYTHONPATH": path}
    # Signals blocked here stay blocked in the new process; an interrupt of the kernel reaches the process group.
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        process = subprocess.Popen(
            (*command, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if captured else None,
            env=environment,
            bufsize=0,
            start_new_session=session,
        )
    except OSError as error:
        raise WorkerError(
            f"the worker process can't be started ({error})",
            where=sys.executable,
            remedy='free memory or files, or run in this process with kind="inline"',
        ) from error
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def pipes_of(process: subprocess.Popen[bytes]) -> tuple[int, ...]:
    """Descriptors of a process's pipes: its input, its output and, if it is heard, its errors.

    They are duplicates, because each is closed by the thread that owns it; those of `Popen` are closed here.
    """
    pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
    found = tuple(os.dup(pipe.fileno()) for pipe in pipes)
    for pipe in pipes:
        pipe.close()
    return found
