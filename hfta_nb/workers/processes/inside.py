"""Within a worker process: its pipes, and the process that it must not outlive."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from hfta_nb.workers.processes.frames import Message, Unpacker

_LOOK_ROUND_S = 2.0


def begin() -> tuple[int, int]:
    """Prepare a worker process; returns its two pipes, see `private_pipes`.

    An interrupt of a terminal reaches the whole process group, but is not for a worker. A crash leaves a traceback on
    standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()
    return private_pipes()


def listen(inbox: int, starter: int, take: Callable[[Message, bytes], None], stays: Callable[[], bool]) -> None:
    """Hand over messages on a thread until the sender is gone; then end the process, whatever it is doing.

    Args:
        inbox: descriptor of the pipe.
        starter: id of the process that started this one.
        take: called with each message.
        stays: called when the sender is gone; whether this process ends by itself.
    """

    def serve() -> None:
        code = 1
        try:
            parent, unpacker = parent_of(starter), Unpacker()
            while data := read(inbox, parent):
                for message, blob in unpacker.feed(data):
                    take(message, blob)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            if code or not stays():
                os._exit(code)

    threading.Thread(target=serve, name="hfta_nb listener", daemon=True).start()


def private_pipes() -> tuple[int, int]:
    """Move the two pipes to private descriptors, so that a job's ``print`` and ``input`` can't mix with the messages.

    Printed text goes to standard error; reading from the keyboard finds end of file.
    """
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    open_outputs()
    return inbox, outbox


def open_outputs() -> None:
    """New standard streams: a job may have closed or replaced the last ones."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def parent_of(kernel: int) -> int:
    """The process whose end also ends this one: the kernel, or a wrapper around the interpreter.

    0 if the kernel ended before this process looked.
    """
    parent = os.getppid()
    if parent == kernel:
        return parent
    import psutil

    with contextlib.suppress(psutil.Error):
        return parent if psutil.Process(kernel).status() != psutil.STATUS_ZOMBIE else 0
    return 0


def read(inbox: int, parent: int) -> bytes:
    """Read what is available; nothing if the pipe was closed or the kernel's process is gone.

    The latter is checked because a process forked by the kernel may outlive it and hold the pipe open.
    """
    if sys.platform != "win32":
        while not select.select([inbox], [], [], _LOOK_ROUND_S)[0]:
            if os.getppid() != parent:
                return b""
    return os.read(inbox, 1 << 18)
