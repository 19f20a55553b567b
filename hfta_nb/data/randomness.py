"""Random streams for external code, seeded separately and restored afterwards."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hfta_nb.engine.members.own_draws import drawing_from
from hfta_nb.engine.members.process_streams import one_thread


class Randomness:
    """Separate streams of torch, NumPy, Python's `random` and `own` generators for some code.

    Args:
        seed: the initial seed of all of them.
        own: further generators that the code uses, for example a `DataLoader`'s.
    """

    def __init__(self, seed: int, own: Sequence[torch.Generator] = ()) -> None:
        self.own = list(own)
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.own.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self._torch = torch.Generator().manual_seed(seed)
        with one_thread():
            outer = self._states()
            for generator in self.own:
                generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            self._now = self._states()
            self._put(outer)

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Use these streams within the block, and restore the previous ones after it."""
        with one_thread(), drawing_from(self._torch):
            outer = self._states()
            self._put(self._now)
            try:
                yield
            finally:
                self._now = self._states()
                self._put([self._now[0], *outer[1:]])

    def _states(self) -> list[Any]:
        """Torch's first, NumPy's and Python's last."""
        generators = [self._torch, *self.own]
        return [*(g.get_state() for g in generators), np.random.get_state(legacy=False), random.getstate()]

    def _put(self, states: Sequence[Any]) -> None:
        for generator, state in zip([self._torch, *self.own], states, strict=False):
            generator.set_state(state)
        np.random.set_state(states[-2])
        random.setstate(states[-1])

    def moved(self, since: Sequence[Any]) -> bool:
        """Whether anything was drawn since `mark` gave `since`."""
        return not _same(self._now, since)

    def mark(self) -> list[Any]:
        """The positions of the streams."""
        return self._now


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    tensors = zip(a[:-2], b[:-2], strict=True)
    return all(torch.equal(x, y) for x, y in tensors) and _equal(a[-2], b[-2]) and bool(a[-1] == b[-1])


def _equal(a: Any, b: Any) -> bool:
    """Compare two states of NumPy's stream."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return bool(np.array_equal(a, b))
