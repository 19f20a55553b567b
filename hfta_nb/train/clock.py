"""Where the time of a run goes, and how much is left of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

SETTLED_S = 1.0
"""After so many seconds of plain training the time left can be told."""


@dataclass
class Clock:
    """Where the time of a run goes.

    One step of one member is the unit of work. Work is timed in windows, from one `tick` to the next; the pace comes
    from those alone in which training ran as it will run on.

    Attributes:
        elapsed_s: seconds of training so far, over all resumptions; pauses are left out.
        work_done: work so far, over all resumptions.
        settled_s, settled_work: seconds and work of the windows that count.
    """

    elapsed_s: float = 0.0
    work_done: float = 0.0
    settled_s: float = 0.0
    settled_work: float = 0.0
    since: float = field(default_factory=time.perf_counter)
    _work: float = 0.0
    _tried: bool = False
    _warm: bool = False

    def did(self, work: float, tried: bool) -> None:
        """Count the work of a step.

        Args:
            work: of all members.
            tried: whether a way of computing was tried by the step, or something was timed beside it.
        """
        self.work_done += work
        self._work += work
        self._tried |= tried

    def tick(self) -> None:
        """End a window, and begin the next."""
        now = time.perf_counter()
        lap, self.since = now - self.since, now
        self.elapsed_s += lap
        if self._tried:
            self._warm = False
        elif self._warm:
            self.settled_s += lap
            self.settled_work += self._work
        elif self._work:  # in the first window steps are recorded, to be replayed
            self._warm = True
        self._work, self._tried = 0.0, False

    def skip(self) -> None:
        """Leave out what passed since the last tick (a pause)."""
        self.since = time.perf_counter()
        self._work, self._tried = 0.0, False

    def cool(self) -> None:
        """Let the next window not count: an array is built and records its steps."""
        self._warm = False

    def remaining_s(self, work: float) -> float:
        """Seconds that so much work takes; NaN while that can't be told."""
        if work and (self.settled_s < SETTLED_S or not self.settled_work):
            return math.nan
        return work * self.settled_s / self.settled_work if work else 0.0
