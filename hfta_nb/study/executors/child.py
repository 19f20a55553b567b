"""The worker's end: reads jobs from standard input, writes events to the original standard output.

The process lives as long as its standard input is open: a thread that reads it ends the process at end of file,
whatever torch is doing. So the worker ends when the kernel is shut down, restarted or killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import sys
from typing import Any, NoReturn

from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.study.executors.jobs import failed, perform
from hfta_nb.workers.processes import frames
from hfta_nb.workers.processes.inside import begin, listen, open_outputs

UNSENT = 10_000
"""Events that may wait for the kernel before training waits. A kernel inside a long call of a C library reads
nothing."""


def main(kernel: int) -> NoReturn:
    """Serve jobs until standard input ends.

    Args:
        kernel: id of the process that started this one.
    """
    inbox, outbox = begin()
    jobs: queue.SimpleQueue[tuple[frames.Message, bytes]] = queue.SimpleQueue()
    controls: dict[int, Control] = {}

    def take(message: frames.Message, payload: bytes) -> None:
        if "job" in message:
            controls[message["run"]] = Control()
            jobs.put((message, payload))
        elif (control := controls.get(message["run"])) is not None:  # else the run is over
            control.put(ev.from_json(message["request"]))  # type: ignore[arg-type]

    listen(inbox, kernel, take)
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
        open_outputs()
        _take_over(header)
        from hfta_nb.workers.processes.pickling import loads

        study, arguments = loads(payload)
    except BaseException as error:
        return failed(error)
    return perform(study, header["job"], control, header["resume"], arguments, emit)


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
    from hfta_nb.workers.processes.pickling import own_modules

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
