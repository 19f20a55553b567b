"""Calls of a model's code, as a test counts them.

A counter in an attribute, a class or a global variable would be one per member, and be put back before a call is
repeated; what is written to a file is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class CallLog:
    """Small numbers that code has noted, in a file in memory."""

    def __init__(self) -> None:
        self._file = os.memfd_create("calls")

    def note(self, value: int = 0) -> int:
        """Note a call with a value from 0 to 255; returns how many there were before."""
        os.write(self._file, bytes([value]))
        return len(self) - 1

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size

    def __iter__(self) -> Iterator[int]:
        return iter(os.pread(self._file, len(self), 0))


def instances(kind: type[T], monkeypatch: pytest.MonkeyPatch) -> list[T]:
    """All objects of a class that are made from now on, in their order."""
    made: list[T] = []
    init = kind.__init__

    def noted(self: T, *given: Any) -> None:
        init(self, *given)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", noted)
    return made
