"""What the worker process of a background study does: one job of a study after another."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.study.executors.jobs import failed, perform
from hfta_nb.workers.processes import pickling
from hfta_nb.workers.processes.child import Send, Task, take_over
from hfta_nb.workers.processes.frames import Message
from hfta_nb.workers.processes.inside import open_outputs


class StudyTask(Task):
    """Does the jobs of studies."""

    def __init__(self) -> None:
        _keep_out_of_collections()

    def do(self, call: Message, payload: bytes, control: Control, report: Send) -> None:
        """Do a job; the last report has its end, and the user's own modules that it has imported."""
        last = _do(call, payload, control, report)
        done = {"event": ev.to_json(last), "done": True, "files": _local_files()}
        _flush()
        report(done, b"")
        _tidy_up()


def _do(call: Message, payload: bytes, control: Control, report: Send) -> ev.RunChanged:
    """Do one job; errors are part of the returned event."""

    def emit(event: Event) -> None:
        report({"event": ev.to_json(event)}, b"")

    try:
        open_outputs()
        take_over(call["surroundings"])
        study, arguments = pickling.loads(payload)
    except BaseException as error:
        return failed(error)
    with _written_to(call.get("output")):
        return perform(study, call["job"], control, call["resume"], arguments, emit)


@contextlib.contextmanager
def _written_to(file: str | None) -> Iterator[None]:
    """Have what is printed in a file, as nobody may read the pipe of a run that outlives its kernel."""
    try:
        Path(str(file)).parent.mkdir(parents=True, exist_ok=True)
        opened = None if file is None else os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError:  # the run itself says what is wrong with its directory
        opened = None
    if opened is None:
        yield
        return
    before = os.dup(2)
    try:
        _redirect(opened)
        yield
    finally:
        _redirect(before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the job may have closed it
            stream.flush()


def _redirect(file: int) -> None:
    """Let both standard streams go to a descriptor, which is closed."""
    _flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _keep_out_of_collections() -> None:
    """Exclude existing objects, which stay, from garbage collection: a sixth of a second each time."""
    gc.collect()
    gc.freeze()


def _local_files() -> dict[str, int]:
    """The user's own modules that a job has imported, with their times of change: after an edit a later job needs a new
    process."""
    found = {}
    for file in pickling.own_modules():
        with contextlib.suppress(OSError):
            found[file] = os.stat(file).st_mtime_ns
    return found


def _tidy_up() -> None:
    """Release the job's memory, on the GPU as well, so that an idle worker does not block others."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
