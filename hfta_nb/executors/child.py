"""The worker's end: reads jobs from standard input, writes events to the original standard output.

The process lives as long as its standard input is open: a thread that reads it ends the process at end of file,
whatever torch is doing. So the worker ends when the kernel is shut down, restarted or killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import queue
import select
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from hfta_nb import events as ev
from hfta_nb.events import Control, Event
from hfta_nb.executors import frames
from hfta_nb.executors.jobs import failed, perform

_LOOK_ROUND_S = 2.0
_BROKEN_PIPE = 74

UNSENT = 10_000
"""Events that may wait for the kernel before training waits. A kernel inside a long call of a C library reads
nothing."""


def main(kernel: int) -> NoReturn:
    """Serve jobs until standard input ends.

    Args:
        kernel: id of the process that started this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the kernel reaches the whole process group
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()  # a crash leaves a traceback in the log
    inbox, outbox = _private_pipes()
    jobs: queue.SimpleQueue[tuple[frames.Message, bytes]] = queue.SimpleQueue()
    controls: dict[int, Control] = {}
    threading.Thread(target=_listen, args=(inbox, kernel, jobs, controls), name="hfta_nb listener", daemon=True).start()
    _import_torch()
    if jobs.empty():
        _warm_up()
    sender = frames.Sender(outbox, "hfta_nb sender", UNSENT)
    sender.put({"run": 0, "ready": True})
    while True:
        message, payload = jobs.get()
        run = message["run"]
        last = _do(message["job"], payload, controls[run], sender, run)
        del controls[run], payload
        done = {"run": run, "event": ev.to_json(last), "done": True, "files": _local_files()}
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the job may have closed it
                stream.flush()
        sender.put(done)
        _tidy_up()


def _do(header: dict[str, Any], payload: bytes, control: Control, sender: frames.Sender, run: int) -> ev.RunChanged:
    """Do one job; errors are part of the returned event."""

    def emit(event: Event) -> None:
        sender.put({"run": run, "event": ev.to_json(event)})

    try:
        _open_outputs()
        _take_over(header)
        from hfta_nb.executors.pickling import loads

        study, arguments = loads(payload)
    except BaseException as error:
        return failed(error)
    return perform(study, header["job"], control, header["resume"], arguments, emit)


def _private_pipes() -> tuple[int, int]:
    """Move the two pipes to private descriptors, so that a job's ``print`` and ``input`` can't mix with the messages.

    Printed text goes to standard error; reading from the keyboard finds end of file.
    """
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    _open_outputs()
    return inbox, outbox


def _open_outputs() -> None:
    """New standard streams: a job may have closed or replaced the last ones."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _listen(
    inbox: int, kernel: int, jobs: queue.SimpleQueue[tuple[frames.Message, bytes]], controls: dict[int, Control]
) -> None:
    """Receive jobs and requests until the sender is gone; then end the process."""
    code = _BROKEN_PIPE
    try:
        parent = _parent(kernel)
        unpacker = frames.Unpacker()
        while data := _read(inbox, parent):
            for message, payload in unpacker.feed(data):
                if "job" in message:
                    controls[message["run"]] = Control()
                    jobs.put((message, payload))
                elif (control := controls.get(message["run"])) is not None:  # else the run is over
                    control.put(ev.from_json(message["request"]))  # type: ignore[arg-type]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _parent(kernel: int) -> int:
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


def _read(inbox: int, parent: int) -> bytes:
    """Read what is available; nothing if the pipe was closed or the kernel's process is gone.

    The latter is checked because a process forked by the kernel may outlive it and hold the pipe open.
    """
    if sys.platform != "win32":
        while not select.select([inbox], [], [], _LOOK_ROUND_S)[0]:
            if os.getppid() != parent:
                return b""
    return os.read(inbox, 1 << 18)


def _import_torch() -> None:
    """Import torch in advance. The environment already has the numbers of threads, which OpenMP reads on import."""
    import hfta_nb.study  # noqa: F401

    # Existing objects stay, so exclude them from garbage collection (a sixth of a second each time).
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """Trigger torch's lazy imports of a first fused step: 500 modules, a second or more."""
    import torch

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.zeros(1, 3) @ weight, torch.zeros(1, dtype=torch.long))

    with contextlib.suppress(Exception):
        torch.func.vmap(torch.func.grad(loss))(torch.zeros(2, 3, 2))
    gc.collect()
    gc.freeze()


def _take_over(header: dict[str, Any]) -> None:
    """Adopt the kernel's current directory, module path, environment and number of threads."""
    os.chdir(header["directory"])
    sys.path[:] = header["path"]
    wanted, kept = header["environment"], set(header["keep"])
    for name in set(os.environ) - set(wanted) - kept:
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if name not in kept})
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(header["threads"])


def _local_files() -> dict[str, int]:
    """The user's own modules that a job has imported, with their times of change: after an edit a later job needs a new
    process."""
    from hfta_nb.executors.pickling import own_modules

    found = {}
    for file in own_modules():
        with contextlib.suppress(OSError):
            found[file] = os.stat(file).st_mtime_ns
    return found


def _tidy_up() -> None:
    """Release the job's memory, on the GPU as well, so that an idle worker does not block others."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
