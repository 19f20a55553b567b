"""Base class of samplers."""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from hfta_nb.records.events import DeviceSampled


class Sampler(abc.ABC):
    """Measures the utilization of one device since the last call.

    Args:
        device: torch's name of the device, which labels the samples.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def sample(self) -> DeviceSampled:
        """Measure the time since the last sample.

        Takes well under 2 ms and never raises: a counter that can't be read is left out.
        """
        values: dict[str, float] = {}
        for counter in self._counters():
            with contextlib.suppress(Exception):
                values.update(counter())
        found = {k: v for k, v in values.items() if math.isfinite(v)}
        return DeviceSampled(time.time(), self.device, found, self.note)

    @property
    def note(self) -> str:
        """Why something is not measured; empty if there is nothing to report."""
        return ""

    @abc.abstractmethod
    def _counters(self) -> tuple[Callable[[], dict[str, float]], ...]:
        """The measurements, each separate, so that a failing one does not affect the others."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Release the sampler's resources; it can't be used afterwards."""

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def fraction(part: float, whole: float) -> float:
    """Clip a share to 0..1; counters that are not read at the same instant can exceed it slightly."""
    return min(max(part / whole, 0.0), 1.0)
