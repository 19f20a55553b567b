"""Memory for intermediate values, which the programs of an array share: they run one after another."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor


class Scratch:
    """Buffers of programs that exist; a buffer is released with the last program that uses it."""

    def __init__(self) -> None:
        self._buffers: list[weakref.ref[Tensor]] = []

    def buffers(self, device: torch.device) -> list[Tensor]:
        """The buffers on a device, in the order in which they were added."""
        return [buffer for buffer in self._there() if buffer.device == device]

    def add(self, buffers: Iterable[Tensor]) -> None:
        """Let later programs use these buffers as well."""
        known = {id(buffer): buffer for buffer in (*self._there(), *buffers)}
        self._buffers = list(map(weakref.ref, known.values()))

    def _there(self) -> list[Tensor]:
        return [buffer for known in self._buffers if (buffer := known()) is not None]
