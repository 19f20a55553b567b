"""The random streams of Python and NumPy, which belong to the process: every member draws the same numbers from them.

Each member's result therefore equals that of a separate process which begins with the same state of these streams. See
`one_thread` for other threads, which draw from them as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np

from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.own_draws import for_another_thread

StreamStates = tuple[Any, Any]
"""The states of Python's and NumPy's streams."""

_TWISTER = struct.Struct("2496si")
"""The memory of NumPy's Mersenne twister: 624 words and the position among them."""


def stream_states() -> StreamStates:
    return random.getstate(), np.random.get_state(legacy=False)


def set_stream_states(given: StreamStates) -> None:
    random.setstate(given[0])
    np.random.set_state(given[1])


@contextmanager
def began_at(start: StreamStates) -> Iterator[None]:
    """Begin with these states in the context, and restore those of before at its end, each only where they differ."""
    with one_thread():
        outer = start
        if not unchanged(start):
            outer = stream_states()
            set_stream_states(start)
        try:
            yield
        finally:
            if not unchanged(outer):
                set_stream_states(outer)


@contextmanager
def streams_kept() -> Iterator[None]:
    """Restore the streams at the end of the context, in which other threads don't disturb them; see `one_thread`."""
    with one_thread():
        outer = stream_states()
        try:
            yield
        finally:
            set_stream_states(outer)


def unchanged(since: StreamStates) -> bool:
    """True if the streams have these states now.

    NumPy's Mersenne twister is compared in its memory, in a thirtieth of the time in which NumPy returns its state. If
    a normal number is in store (`has_gauss`), the next one is drawn without a change there.
    """
    python, numpy = since
    if random.getstate() != python:
        return False
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # public, but not in NumPy's stubs
    if isinstance(generator, np.random.MT19937) and numpy["bit_generator"] == "MT19937" and not numpy["has_gauss"]:
        began = _TWISTER.pack(numpy["state"]["key"].tobytes(), numpy["state"]["pos"])
        return ctypes.string_at(generator.ctypes.state_address, _TWISTER.size) == began
    return same_value(np.random.get_state(legacy=False), numpy)


class ProcessStreams:
    """Resets the streams, so that every member of a call begins with the state at the start of the call.

    Attributes:
        drawn: True if the model has drawn from these streams; otherwise they are neither saved nor restored.
    """

    def __init__(self) -> None:
        self.drawn = False
        self._began: StreamStates | None = None
        self._alone = ExitStack()
        self._there = False  # nothing has run since the start of the call

    def begin(self, watching: bool) -> None:
        """Begin a call, or repeat it.

        Args:
            watching: find out whether the model draws.
        """
        if self._began is None and (watching or self.drawn):
            self.start()

    def start(self) -> StreamStates:
        """The state at the start of the call, which is now if nothing has run yet."""
        if self._began is None:
            self._alone.enter_context(one_thread())
            self._began, self._there = stream_states(), True
        return self._began

    def rewind(self) -> None:
        """Restore the state at the start of the call, if it was saved."""
        if self._began is not None:
            set_stream_states(self._began)

    def end(self) -> None:
        """End the call."""
        self._began = None
        self._alone.close()

    def here(self) -> StreamStates | None:
        """The current states, or None if this call does not save them."""
        return None if self._began is None else stream_states()

    @contextmanager
    def turn(self, start: StreamStates | None = None) -> Iterator[None]:
        """Run a member or a block of members.

        Args:
            start: states to begin with; by default those at the start of the call.
        """
        start = start or self._began
        if start is None or self._began is None:
            yield
            return
        if not (self._there and start is self._began):  # setting them takes as long as a layer of a small model
            set_stream_states(start)
        self._there = False
        try:
            yield
        finally:
            self.drawn = self.drawn or not unchanged(start)


# Other threads.

_WAIT_S, _LAST_S = 5.0, 0.001
"""How long another thread waits with its first draw, in seconds; how long calls of true functions last."""


class _Process:
    """What is known of the threads of the process.

    Attributes:
        lock: held by the thread that sets streams of the process.
        depth: how many of its contexts are open.
        owner: that thread; None outside of contexts, and where there is no other thread.
        drawing: held while another thread draws, and while the streams change hands.
        installed: whether the functions of `random` and `numpy.random` are ours.
        calls: how often other threads have called the functions of `random` and `numpy.random`.
        began: the states at the beginning of the context, with which the streams of the others begin; None if no other
            thread has drawn before.
        others: the streams that other threads draw from; None until one of them does.
    """

    lock = threading.RLock()
    depth = 0
    owner: int | None = None
    drawing = threading.RLock()
    installed = False
    calls = 0
    began: StreamStates | None = None
    others: tuple[random.Random, np.random.RandomState] | None = None


@contextmanager
def one_thread() -> Iterator[None]:
    """The context in which this thread alone sees streams of the process, and may set them.

    A second thread in such a context waits. Threads that know nothing of this go on with the numbers that they would
    have drawn: the functions in the modules `random` and `numpy.random` are replaced by some that draw, in those
    threads, from copies of the streams; until the end of the context, or of the other threads once one of them has
    drawn. The first draw of all waits for the end of the context. If the streams are at the end as they were before,
    they go on from where the copies have come. (What calls functions that it has taken from the modules before is not
    seen.)
    """
    if for_another_thread():  # which holds the lock
        yield
        return
    with _Process.lock:
        _Process.depth += 1
        try:
            if _Process.depth == 1:
                _take()
            yield
        finally:
            _Process.depth -= 1
            if _Process.depth == 0 and _Process.owner is not None:
                _hand_back()


def _take() -> None:
    """Take the streams from the other threads, if there are any."""
    if threading.active_count() == 1:
        if _Process.installed:
            _Process.calls = 0
            _install(False)
        return
    if not _Process.installed:
        _install(True)
        _wait_for_others()
    with _Process.drawing:
        _Process.began = stream_states() if _Process.calls else None
        _Process.owner, _Process.others = threading.get_ident(), None


def _wait_for_others() -> None:
    """Wait until calls of the true functions in other threads have ended."""
    until = time.monotonic() + _WAIT_S
    time.sleep(_LAST_S)  # NumPy's
    while time.monotonic() < until and any(map(_draws, sys._current_frames().values())):
        time.sleep(_LAST_S)


def _draws(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != random.__file__:
        frame = frame.f_back
    return frame is not None


def _install(own: bool) -> None:
    """Replace the functions, or put the true ones back; not what someone else has put there."""
    for names, true, wrappers in _FUNCTIONS:
        now, then = (true, wrappers) if own else (wrappers, true)
        if now.items() <= names.items():
            names.update(then)
        else:
            names.update({name: then[name] for name, value in now.items() if names.get(name) is value})
    _Process.installed = own


def _hand_back() -> None:
    with _Process.drawing:
        if _Process.others is not None and _Process.began is not None:
            python, numpy = _Process.others
            now = stream_states()
            if now[0] == _Process.began[0]:
                random.setstate(python.getstate())
            if same_value(now[1], _Process.began[1]):
                np.random.set_state(numpy.get_state(legacy=False))
        _Process.owner, _Process.others = None, None
    if not _Process.calls:
        _install(False)


def _others() -> tuple[random.Random, np.random.RandomState]:
    """The streams that other threads draw from while one has those of the process."""
    if _Process.others is None:
        python, numpy = _Process.began or (None, {"bit_generator": "MT19937"})
        kind = getattr(np.random, numpy["bit_generator"])
        _Process.others = random.Random(), np.random.RandomState(kind())
        if python is not None:
            _Process.others[0].setstate(python)
            _Process.others[1].set_state(numpy)
    return _Process.others


def _wrapped(true: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
    """A function in place of one that draws from a stream of the process, or sets it."""

    @functools.wraps(true)
    def function(*args: Any, **kwargs: Any) -> Any:
        owner = _Process.owner
        if owner == threading.get_ident():
            return true(*args, **kwargs)
        _Process.calls += 1
        if owner is not None and _Process.began is None and _Process.lock.acquire(timeout=_WAIT_S):
            try:
                return true(*args, **kwargs)
            finally:
                _Process.lock.release()
        with _Process.drawing:
            if _Process.owner is None:
                return true(*args, **kwargs)
            return getattr(_others()[place], name)(*args, **kwargs)

    return function


_ALIASES = {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}
"""Functions of `numpy.random` that are no methods of its stream, and the methods that they call."""


def _functions(module: Any, stream: Any, place: int, aliases: dict[str, str]) -> tuple[dict[str, Any], ...]:
    """The module's names, and by name its functions that draw from its stream, and what takes their place."""
    names = vars(module)
    found = {name: value.__name__ for name, value in names.items() if getattr(value, "__self__", None) is stream}
    found |= {name: method for name, method in aliases.items() if name in names}
    true = {name: names[name] for name in found}
    return names, true, {name: _wrapped(true[name], place, method) for name, method in found.items()}


_FUNCTIONS = (
    _functions(random, random._inst, 0, {}),
    _functions(np.random, np.random.mtrand._rand, 1, _ALIASES),
)


def _forget() -> None:
    """A forked process has one thread, which may be in a context of its parent."""
    _Process.lock, _Process.drawing = threading.RLock(), threading.RLock()
    if _Process.owner not in (None, threading.get_ident()):
        _Process.depth = 0
    _Process.owner, _Process.others = None, None
    _install(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
