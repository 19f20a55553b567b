"""The loop over a run: however the loop is left, the run stops in order and everything is kept.

``break`` closes the iterator. An exception in the loop's body, KeyboardInterrupt and SystemExit among them, leaves the
iterator suspended for as long as somebody holds the traceback: then the next run in this directory ends it, or the end
of the notebook's cell, or the end of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import signal
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.records.events import Control, Event

Events = Generator[Event, None, None]


@dataclass
class _Open:
    """A run that has begun and not ended.

    Attributes:
        iterator: what the loop goes over; None before there is one.
        consumer: the frame that asked for the last event, by its id and code: to hold the frame would keep it alive.
        requested: whether an event was asked for in the notebook's present cell.
    """

    iterator: Callable[[], Events | None]
    consumer: tuple[int, CodeType] | None = None
    requested: bool = False

    def note(self, frame: FrameType) -> None:
        self.consumer, self.requested = (id(frame), frame.f_code), True

    def used_by(self, frame: FrameType | None) -> bool:
        """Whether the loop is at this frame, or at one that has called it."""
        while frame is not None:
            if (id(frame), frame.f_code) == self.consumer:
                return True
            frame = frame.f_back
        return False

    def end(self) -> None:
        """Close the iterator, unless its loop is still on."""
        iterator = self.iterator()
        used = any(self.used_by(frame) for frame in sys._current_frames().values())
        if iterator is not None and not used and inspect.getgeneratorstate(iterator) != inspect.GEN_RUNNING:
            iterator.close()


_open: dict[Path, _Open] = {}


def iterate(directory: Path, begin: Callable[[], Events], control: Control) -> Iterator[Event]:
    """The events of a run, for a loop that may be left in any way.

    Args:
        directory: of the run.
        begin: makes the generator that does the work. It is asked to stop, never closed, while it trains.
        control: of the run.
    """
    entry = _Open(lambda: None)
    iterator = _driven(entry, directory, begin, control)
    entry.iterator = weakref.ref(iterator)
    return iterator


def _driven(entry: _Open, directory: Path, begin: Callable[[], Events], control: Control) -> Events:
    _end_abandoned(directory)
    _open[directory] = entry
    _watch_cells()
    work, interrupts = begin(), Interrupts(control)
    try:
        while True:
            entry.note(sys._getframe(1))
            with interrupts:
                event = next(work, None)
            if event is None:
                break
            if not interrupts.requested:
                yield event
    finally:
        try:
            if inspect.getgeneratorstate(work) != inspect.GEN_CLOSED:  # the loop was left
                control.stop()
                with interrupts:
                    for _ in work:
                        pass
        finally:
            if _open.get(directory) is entry:
                del _open[directory]
    if interrupts.requested:
        raise KeyboardInterrupt


class Interrupts:
    """Within the block, the first interrupt (Ctrl-C) stops the run between two steps; a second one raises at once.

    Only if an interrupt would raise KeyboardInterrupt: other handlers stay, and threads other than the main one are not
    affected.

    Args:
        control: where the request to stop is posted.

    Attributes:
        requested: whether there was an interrupt.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._handler = self._handle  # one object, to be recognised
        self.requested = False

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGINT, self._handler)

    def __exit__(self, *error: object) -> None:
        if signal.getsignal(signal.SIGINT) is self._handler:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._control.stop()


def _end_abandoned(directory: Path) -> None:
    """End a run in this directory whose loop was left by an exception.

    Raises:
        StudyError: its loop is still on, further up in this very call.
    """
    entry = _open.get(directory)
    if entry is None:
        return
    if entry.used_by(sys._getframe(1)):
        remedy = "leave its loop first, or close() its iterator; a Control stops it from within the loop"
        raise StudyError("the run is going on, in a loop that is still open", where=str(directory), remedy=remedy)
    entry.end()


def _watch_cells() -> None:
    """In a notebook, let a cell that raises end its runs."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_shell is None else get_shell()
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)  # which takes a function once


def _after_cell(result: Any = None) -> None:
    for entry in list(_open.values()):
        requested, entry.requested = entry.requested, False
        if requested and not getattr(result, "success", True):
            entry.end()


def _end_all() -> None:
    """End all open runs when the process ends."""
    for entry in list(_open.values()):
        with contextlib.suppress(Exception):  # it is in the run's events
            entry.end()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)  # the runs are the parent's
