"""What it costs to cut an array down: its calls are recorded anew."""

from __future__ import annotations

MOST_STEPS = 100.0
"""Steps of the array that recording its calls anew costs at most; assumed until it was measured."""


class RecordingCost:
    """Times the epochs of an array: the first one records the calls that later ones replay."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._first_s: float | None = None
        self._least_s: float | None = None
        self._cost_s = 0.0

    def begin(self) -> None:
        """The array is another one from now on."""
        self._first_s = self._least_s = None

    def epoch(self, elapsed_s: float) -> None:
        """An epoch has ended, with its validation.

        Args:
            elapsed_s: seconds of training so far.
        """
        lap, self._begun_s = elapsed_s - self._begun_s, elapsed_s
        if self._first_s is None:
            self._first_s = lap
            return
        self._least_s = lap if self._least_s is None else min(lap, self._least_s)
        self._cost_s = max(0.0, self._first_s - self._least_s)

    def steps(self, length: int) -> float:
        """How many steps of the array take as long as recording its calls.

        Args:
            length: steps of an epoch.
        """
        if not self._least_s:
            return MOST_STEPS
        return min(MOST_STEPS, self._cost_s / self._least_s * length)
