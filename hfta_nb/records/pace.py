"""How often a view of a run is drawn, whatever its size."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

SHARE = 0.05
"""Of the time that drawing may take: of 10,000 members a picture takes tenths of a second."""


class Pace:
    """Says when a view is to be drawn again, from how long it took before.

    Args:
        interval_s: from one drawing to the next, at least, in seconds.
        clock: in seconds.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._next_s = float("-inf")

    @property
    def due(self) -> bool:
        return self._clock() >= self._next_s

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """The view is drawn within."""
        begin_s = self._clock()
        try:
            yield
        finally:
            end_s = self._clock()
            self._next_s = max(begin_s + self.interval_s, end_s + (end_s - begin_s) / SHARE)
