"""Runs a user's code without side effects on the settings and random streams of the process."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")


@contextmanager
def settings_kept() -> Iterator[None]:
    """Restore torch's default dtype and number of threads after the block."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Like `settings_kept`, and also restore the random streams of torch (on the CPU), NumPy and Python."""
    outer = _streams()
    try:
        with settings_kept():
            yield
    finally:
        _put(outer)


def apart(events: Iterator[T]) -> Generator[T, None, Any]:
    """Iterate a generator that runs with its own random stream; settings are restored before each item.

    Its stream (torch's on the CPU) starts as a copy of the process's stream, which the caller keeps unchanged. NumPy's
    and Python's streams are shared, because swapping them takes longer than many events.
    """
    own = torch.random.get_rng_state()
    try:
        while True:
            outer = torch.random.get_rng_state()
            torch.random.set_rng_state(own)
            try:
                with settings_kept():
                    event = next(events)
            except StopIteration as end:
                return end.value
            finally:
                own = torch.random.get_rng_state()
                torch.random.set_rng_state(outer)
            yield event
    finally:
        if isinstance(events, Generator):
            events.close()


def _streams() -> tuple[Any, ...]:
    return torch.random.get_rng_state(), np.random.get_state(), random.getstate()


def _put(streams: tuple[Any, ...]) -> None:
    mine, numpys, pythons = streams
    torch.random.set_rng_state(mine)
    np.random.set_state(numpys)
    random.setstate(pythons)
