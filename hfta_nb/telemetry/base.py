"""What all samplers have in common."""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from hfta_nb.events import DeviceSampled


class Sampler(abc.ABC):
    """Measures how busy one device is, since it was last asked.

    Args:
        device: as torch names it; it is what the samples are labelled with.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def sample(self) -> DeviceSampled:
        """What happened since the last sample.

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
        """Why something is not measured; empty where nothing is to be said."""
        return ""

    @abc.abstractmethod
    def _counters(self) -> tuple[Callable[[], dict[str, float]], ...]:
        """What is measured, each apart, so that one that fails costs the others nothing."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what the sampler holds; it is of no use from then on."""

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def fraction(part: float, whole: float) -> float:
    """A share within 0..1: counters that are not read at one instant can be a little beyond."""
    return min(max(part / whole, 0.0), 1.0)
