"""Random streams for external code, seeded separately and restored afterwards."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.own_draws import drawing_from
from hfta_nb.engine.members.process_streams import one_thread


class Randomness:
    """Separate streams of torch, NumPy and Python's `random` for some code.

    Args:
        seed: the initial seed of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._own: list[torch.Generator] = []
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._own.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self._torch = torch.Generator().manual_seed(seed)
        with one_thread():
            outer = self._states()
            for generator in self._own:
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
        generators = [self._torch, *self._own]
        return [*(g.get_state() for g in generators), np.random.get_state(legacy=False), random.getstate()]

    def _put(self, states: Sequence[Any]) -> None:
        for generator, state in zip([self._torch, *self._own], states, strict=False):
            generator.set_state(state)
        np.random.set_state(states[-2])
        random.setstate(states[-1])

    def moved(self, since: Sequence[Any]) -> bool:
        """Whether anything was drawn since `mark` gave `since`."""
        return not same_value(self._now, since)

    def mark(self) -> list[Any]:
        """The positions of the streams."""
        return self._now
