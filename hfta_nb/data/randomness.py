"""Random numbers of code that is not ours: seeded for itself, and unseen by everybody else."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


class Randomness:
    """The streams of torch, NumPy and Python's `random` (and `own` generators) that some code is to draw from.

    Args:
        seed: of all of them, at the beginning.
        own: further generators that the code holds, for example a `DataLoader`'s.
    """

    def __init__(self, seed: int, own: Sequence[torch.Generator] = ()) -> None:
        self.own = [torch.default_generator, *own]
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.own.append(torch.cuda.default_generators[torch.cuda.current_device()])
        outer = self._states()
        for generator in self.own:
            generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self._now = self._states()
        self._put(outer)

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Within, everybody draws from these streams; after, from those of before."""
        outer = self._states()
        self._put(self._now)
        try:
            yield
        finally:
            self._now = self._states()
            self._put(outer)

    def _states(self) -> list[Any]:
        return [*(g.get_state() for g in self.own), np.random.get_state(), random.getstate()]

    def _put(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self.own, states, strict=False):
            generator.set_state(state)
        np.random.set_state(states[-2])
        random.setstate(states[-1])

    def moved(self, since: Sequence[Any]) -> bool:
        """Whether anything was drawn since `mark` gave `since`."""
        return not _same(self._now, since)

    def mark(self) -> list[Any]:
        """Where the streams stand."""
        return self._now


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    tensors = zip(a[:-2], b[:-2], strict=True)
    numpy = all(np.array_equal(x, y) for x, y in zip(a[-2], b[-2], strict=True))
    return all(torch.equal(x, y) for x, y in tensors) and numpy and bool(a[-1] == b[-1])
