"""Memory for intermediate values, which the programs of an array share: they run one after another."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor


class Scratch:
    """Buffers of programs that exist; a buffer is released with the last program that uses it."""

    def __init__(self) -> None:
        self._buffers: list[weakref.ref[Tensor]] = []

    def buffers(self) -> list[Tensor]:
        """The buffers, in the order in which they were added."""
        self._buffers = [known for known in self._buffers if known() is not None]
        return [buffer for known in self._buffers if (buffer := known()) is not None]

    def add(self, buffers: Iterable[Tensor]) -> None:
        """Let later programs use these buffers as well."""
        known = {id(buffer) for buffer in self.buffers()}
        self._buffers += [weakref.ref(buffer) for buffer in buffers if id(buffer) not in known]
