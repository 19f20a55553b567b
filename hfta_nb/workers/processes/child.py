"""The child's end of every worker: of a background study, a run's workers, and the ranks of an array.

A parent sends a task, then calls, which are done one after another, and requests to the calls. What a task is, is the
parent's matter: it is pickled. The child sends that it is ready, what its task reports, and a beat every few seconds,
so that one that is silent is known to be stuck. An error that a task does not take care of ends the child, and is told.
It ends with its parent, but after calls that are to outlive that.

Messages reach `Serving` through the pipes of a process (`main`), or as calls of an actor of Ray.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hfta_nb.records.events import Control, from_json
from hfta_nb.workers.processes import cores, frames, inside
from hfta_nb.workers.processes.frames import Message

Send: TypeAlias = Callable[[Message, bytes], None]

BEAT_S = 2.0

UNSENT = 10_000
"""Messages that may wait for the parent before a task waits. A kernel inside a long call of a C library reads
nothing."""


class Task:
    """What a child is for; made in the child, of what its parent sends."""

    def do(self, call: Message, payload: bytes, control: Control, report: Send) -> None:
        """Do what is asked.

        Args:
            call, payload: what the parent has sent.
            control: requests to this call.
            report: sends a message of this call.
        """
        raise NotImplementedError


class Serving:
    """Does what a parent sends.

    Args:
        send: sends it a message.
        name: of this child, for people, where the parent can't know it.
    """

    def __init__(self, send: Send, name: str = "") -> None:
        self._send, self._name = send, name
        self._calls: queue.SimpleQueue[tuple[Message, bytes]] = queue.SimpleQueue()
        self._controls: dict[int, Control] = {}
        self._lasting: set[int] = set()  # calls that outlive the parent
        self._parted, self._lock = False, threading.Lock()
        threading.Thread(target=self._beat, name="hfta_nb beat", daemon=True).start()

    def take(self, message: Message, blob: bytes) -> None:
        """Take a message of the parent, on any thread."""
        if "request" not in message:
            if "call" in message:
                self._controls[message["call"]] = Control()
                if message.get("outlives"):
                    self._lasting.add(message["call"])
            self._calls.put((message, blob))
        elif (control := self._controls.get(message["call"])) is not None:  # else the call is over
            control.put(from_json(message["request"]))  # type: ignore[arg-type]

    def run(self) -> None:
        """Do what comes, without end; returns after an error, which the parent is told."""
        try:
            message, blob = self._calls.get()
            task = _task(message, blob)
            self._send({"ready": self._name, "version": version()}, b"")
            while True:
                message, blob = self._calls.get()
                number = message["call"]
                task.do(message, blob, self._controls[number], functools.partial(self._report, number))
                del self._controls[number], blob
                with self._lock:
                    self._lasting.discard(number)
                    if self._parted and not self._lasting:
                        os._exit(0)
        except BaseException as error:
            traceback.print_exc()
            self._send({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}, b"")

    def part(self) -> bool:
        """Called when the parent is gone; whether a call goes on, after which this process ends."""
        with self._lock:
            self._parted = bool(self._lasting)
            return self._parted

    def _report(self, number: int, message: Message, blob: bytes) -> None:
        self._send({"call": number, **message}, blob)

    def _beat(self) -> None:
        never = threading.Event()
        while not never.wait(BEAT_S):
            self._send({"beat": True}, b"")


def main(parent: int) -> int:
    """Serve the process that started this one, until that is gone; returns the exit code.

    Args:
        parent: its id.
    """
    inbox, outbox = inside.begin()
    sender = frames.Sender(outbox, "hfta_nb sender", UNSENT)
    serving = Serving(sender.put)

    def stays() -> bool:
        sender.close()  # what is written for nobody must not wait for a reader
        return serving.part()

    inside.listen(inbox, parent, serving.take, stays)
    serving.run()
    return 1


def packed(make: Callable[..., Task], *given: Any) -> bytes:
    """A task to be sent, as what makes it in the child."""
    from hfta_nb.workers.processes import pickling

    return pickling.packed((make, given))


def version() -> str:
    """Of hfta_nb in this process."""
    return str(sys.modules["hfta_nb"].__version__)


def surroundings(threads: int) -> dict[str, Any]:
    """What a child is to adopt of its parent, which calls this.

    Args:
        threads: of torch.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    found = {"threads": threads, "path": path, "environment": dict(os.environ)}
    with contextlib.suppress(FileNotFoundError):  # the current directory was removed
        found["directory"] = os.getcwd()
    return found


def take_over(given: Mapping[str, Any]) -> None:
    """Adopt the parent's `surroundings`, as far as they are given."""
    if "directory" in given:
        os.chdir(given["directory"])
    if "path" in given:
        sys.path[:] = given["path"]
        wanted = given["environment"]
        for name in set(os.environ) - set(wanted) - cores.OF_A_CHILD:
            del os.environ[name]
        os.environ.update({name: value for name, value in wanted.items() if name not in cores.OF_A_CHILD})
    if "threads" in given:
        import torch

        torch.set_num_threads(given["threads"])


def _task(message: Message, blob: bytes) -> Task:
    take_over(message["task"])
    from hfta_nb.workers.processes.pickling import unpacked

    make, given = unpacked(blob)
    found: Task = make(*given)
    return found
