"""How many processes preprocessing needs, from how long a batch takes to make and to use."""

from __future__ import annotations

import math
import os
import statistics
from collections import deque

LATEST = 9
"""Batches whose times count."""

ENOUGH = 3
"""Batches after which the number of processes is chosen."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Demand:
    """Measures how fast batches are made and used, and tells the fewest processes that keep up.

    Medians over the latest batches: the first steps of an array take longer than all others.

    Args:
        most: the most processes; by default one less than the cores, which is left to training.

    Example:
        >>> demand = Demand(most=4)
        >>> for _ in range(3):
        ...     demand.made(0.3)
        ...     demand.used(0.2)
        >>> demand.processes
        2
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = max(1, cores() - 1) if most is None else most
        self._made: deque[float] = deque(maxlen=LATEST)
        self._used: deque[float] = deque(maxlen=LATEST)

    def made(self, seconds: float) -> None:
        """A process made a batch in this time."""
        self._made.append(seconds)

    def used(self, seconds: float) -> None:
        """All consumers together took this time for a batch, waiting for it left out."""
        self._used.append(seconds)

    @property
    def processes(self) -> int:
        """The fewest processes that make batches as fast as they are used; 1 until enough is measured."""
        if min(len(self._made), len(self._used)) < ENOUGH:
            return 1
        ratio = statistics.median(self._made) / max(1e-9, statistics.median(self._used))
        return max(1, min(self.most, math.ceil(ratio)))
