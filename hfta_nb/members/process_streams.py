"""Python's and NumPy's own random streams, which are no member's: every member draws the same numbers from them.

So each comes to what it would alone, in a process that begins with the same state of these streams.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

StreamStates = tuple[Any, Any]
"""Of Python's stream, and of NumPy's."""


def stream_states() -> StreamStates:
    return random.getstate(), np.random.get_state()


def set_stream_states(given: StreamStates) -> None:
    random.setstate(given[0])
    np.random.set_state(given[1])


def _moved(before: StreamStates) -> bool:
    """Whether somebody has drawn since."""
    now = stream_states()
    return bool(now[0] != before[0] or now[1][2:] != before[1][2:] or (now[1][1] != before[1][1]).any())


class ProcessStreams:
    """Lets every member of a call begin where the call began.

    Attributes:
        drawn: whether the model has been seen to draw from these streams. Else they are not looked at.
    """

    def __init__(self) -> None:
        self.drawn = False
        self._began: StreamStates | None = None

    def begin(self, watching: bool) -> None:
        """A call begins, or is made again.

        Args:
            watching: see whether the model draws.
        """
        if self._began is None and (watching or self.drawn):
            self._began = stream_states()

    def rewind(self) -> None:
        """Go back to where the call began, if it has."""
        if self._began is not None:
            set_stream_states(self._began)

    def end(self) -> None:
        """The call is over."""
        self._began = None

    def here(self) -> StreamStates | None:
        """Where the streams are, within a call in which they are looked at."""
        return None if self._began is None else stream_states()

    @contextmanager
    def turn(self, start: StreamStates | None = None) -> Iterator[None]:
        """Within, a member or a block of members draws.

        Args:
            start: where the streams are to be; without, where the call began.
        """
        start = start or self._began
        if start is None or self._began is None:
            yield
            return
        set_stream_states(start)
        try:
            yield
        finally:
            self.drawn = self.drawn or _moved(start)
