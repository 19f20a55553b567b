"""Runs a user's code without side effects on the settings and random streams of the process."""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, cast

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


@contextmanager
def repeatable() -> Iterator[None]:
    """Use kernels of torch and cuDNN that give the same bits in each run on a GPU within the block.

    Kernels without such a form run as they are, and torch warns once of each. cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG``
    when it is first used; it is set if it is not.

    Source: "Reproducibility" in torch's notes.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn, filling = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    before = cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory
    on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory = True, False, False
    torch.use_deterministic_algorithms(True, warn_only=warns or not on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(on, warn_only=warns)
        cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory = before


def apart(events: Iterator[T], repeats: bool = False) -> Generator[T, None, Any]:
    """Iterate a generator that runs with its own random stream; settings are restored before each item.

    Its stream (torch's on the CPU) starts as a copy of the process's stream, which the caller keeps unchanged. NumPy's
    and Python's streams are shared, because swapping them takes longer than many events.

    Args:
        events: the generator.
        repeats: it runs with the settings of `repeatable`.
    """
    own = torch.random.get_rng_state()
    try:
        while True:
            outer = torch.random.get_rng_state()
            torch.random.set_rng_state(own)
            try:
                with settings_kept(), repeatable() if repeats else nullcontext():
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
    return torch.random.get_rng_state(), np.random.get_state(legacy=False), random.getstate()


def _put(streams: tuple[Any, ...]) -> None:
    mine, numpys, pythons = streams
    torch.random.set_rng_state(mine)
    np.random.set_state(numpys)
    random.setstate(pythons)
