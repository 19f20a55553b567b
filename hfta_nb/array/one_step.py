"""The four calls of the split form as one step of an array."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from hfta_nb.array.self_tuning import SelfTuning
from hfta_nb.members import threads
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.steps import Asked, SeenStep


class OneStep:
    """Runs calls that were put off as one `FusedArray.backward`; see `Whole`.

    Args:
        calls: of the array.
        tuning: of the array's calls.
    """

    def __init__(self, calls: Calls, tuning: SelfTuning) -> None:
        self.calls, self.tuning = calls, tuning

    def settled(self, block_size: int, threads: str) -> bool:
        """Whether `backward` runs in this way from now on."""
        return self.tuning.settled(block_size, threads)

    def replay(self, step: SeenStep) -> tuple[Any, Any] | None:
        """Losses and output of a step that is replayed, its inputs filled in; None if it must run as ever."""
        return self.calls.steps.run(step)

    def find(self, asked: Asked) -> SeenStep | None:
        """What is known of this kind of `backward`."""
        return self.calls.steps.find(asked)

    def backward(self, asked: Asked) -> tuple[Tensor, Any]:
        """Losses and output."""
        return self.tuning.backward(asked, partial(self._run, asked))

    def _run(self, asked: Asked) -> tuple[Tensor, Any]:
        with threads.scope(self.calls.state.settings.threads):
            return self.calls.backward(asked)
