"""Running a person's code so that nobody else sees what it does to the settings and random streams of the process."""

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
    """After the block torch's default dtype and its number of threads are what they were."""
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
    """As `settings_kept`; the random streams of torch (on the CPU), NumPy and Python as well."""
    outer = _streams()
    try:
        with settings_kept():
            yield
    finally:
        _put(outer)


def apart(events: Iterator[T]) -> Generator[T, None, Any]:
    """What a generator yields, while it runs with a random stream of its own, and restores settings before it yields.

    Its stream, torch's on the CPU, begins where that of the process is; who iterates finds theirs untouched. NumPy's
    and Python's are left alone: to swap them takes longer than many an event does.
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
