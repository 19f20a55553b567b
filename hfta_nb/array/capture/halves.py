"""A recorded forward and its backward as one program that runs in two parts.

Both parts share their memory: what the backward needs of the forward stays where it is in between, so that only one
backward can be outstanding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.program import Fetch, Program
from hfta_nb.array.strategy import precision


class Halves:
    """A program with a cut.

    Args:
        ready: the program.
        results: how many of its results are the forward's; the others are the backward's.
    """

    def __init__(self, ready: Program, results: int) -> None:
        self.program = ready
        self._forward, self._backward = ready.steps[: ready.cut], ready.steps[ready.cut :]
        self._outputs, self._inputs = ready.results[:results], ready.results[results:]
        self.serial = 0
        """Of the last forward: what is in memory belongs to it."""

    @torch.enable_grad()  # as in `Program.run`
    def forward(self) -> list[Tensor]:
        """Compute the outputs."""
        self.serial += 1
        with torch._C._AutoDispatchBelowAutograd():
            self._call(self._forward)
            return self._copies(self._outputs)

    @torch.enable_grad()
    def backward(self) -> list[Tensor]:
        """Write the gradients to where they go; returns those of the inputs. Once after each forward."""
        made = self.program.made
        self.serial += 1
        with torch._C._AutoDispatchBelowAutograd():
            self._call(self._backward)
            for room, found in self.program.gradients:
                room.copy_(found.get(made) if isinstance(found, Fetch) else found)
            results = self._copies(self._inputs)
        self.forget()
        return results

    def forget(self) -> None:
        """Let go of what the last forward has allocated."""
        self.serial += 1
        for storage in self.program.left:
            self.program.made[storage] = None

    def _call(self, steps: Sequence[Callable[[], Any]]) -> None:
        generators = self.program.generators
        with nullcontext() if generators is None else generators.borrowed():
            try:
                for step in steps:
                    step()
            finally:
                if self.program.setting is not None:
                    precision.switch(self.program.setting)()

    def _copies(self, results: Sequence[Tensor | Fetch]) -> list[Tensor]:
        made = self.program.made
        return [(r.get(made) if isinstance(r, Fetch) else r).clone() for r in results]
