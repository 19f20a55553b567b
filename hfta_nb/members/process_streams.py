"""The random streams of Python and NumPy, which belong to the process: every member draws the same numbers from them.

Each member's result therefore equals that of a separate process which begins with the same state of these streams.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

StreamStates = tuple[Any, Any]
"""The states of Python's and NumPy's streams."""

_TWISTER = struct.Struct("2496si")
"""The memory of NumPy's Mersenne twister: 624 words and the position among them."""


def stream_states() -> StreamStates:
    return random.getstate(), np.random.get_state(legacy=False)


def set_stream_states(given: StreamStates) -> None:
    random.setstate(given[0])
    np.random.set_state(given[1])


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
    return _equal(np.random.get_state(legacy=False), numpy)


def _equal(a: Any, b: Any) -> bool:
    """Compare two states of NumPy's stream."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return bool(np.array_equal(a, b))


class ProcessStreams:
    """Resets the streams, so that every member of a call begins with the state at the start of the call.

    Attributes:
        drawn: True if the model has drawn from these streams; otherwise they are neither saved nor restored.
    """

    def __init__(self) -> None:
        self.drawn = False
        self._began: StreamStates | None = None
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
            self._began, self._there = stream_states(), True
        return self._began

    def rewind(self) -> None:
        """Restore the state at the start of the call, if it was saved."""
        if self._began is not None:
            set_stream_states(self._began)

    def end(self) -> None:
        """End the call."""
        self._began = None

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
