"""A recorded forward and its backward as one program that runs in two parts.

Both parts share their memory: what the backward needs of the forward stays where it is in between, so that only one
backward can be outstanding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.kernels.strategy import precision
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.members.threads import thread_scope
from hfta_nb.replay.delivery import Target
from hfta_nb.replay.dynamic_call import Fetch, copied
from hfta_nb.replay.program import Program


class Halves:
    """A program with a cut.

    Args:
        ready: the program.
        results: how many of its results are the forward's; the others are the backward's.
        way: what it runs on; see `FusedArray.threads`.
    """

    def __init__(self, ready: Program, results: int, way: str) -> None:
        self.program, self._way = ready, way
        self._forward, self._backward = ready.steps[: ready.cut], ready.steps[ready.cut :]
        self._outputs, self._inputs = ready.results[:results], ready.results[results:]
        self.serial = 0
        """Of the last forward: what is in memory belongs to it."""

    def forward(self) -> list[Tensor]:
        """Compute the outputs."""
        self.serial += 1
        return self._run(self._forward, (), self._outputs, self.program.generators)

    def backward(self) -> list[Tensor]:
        """Write the gradients to where they go; returns those of the inputs. Once after each forward."""
        self.serial += 1
        results = self._run(self._backward, self.program.gradients, self._inputs, None)  # which draws nothing
        for storage in self.program.left:
            self.program.made[storage] = None
        return results

    def _run(
        self,
        steps: Sequence[Callable[[], Any]],
        gradients: Sequence[tuple[Tensor, Tensor | Fetch]],
        results: Sequence[Tensor | Fetch],
        generators: MemberGenerators | None,
    ) -> list[Tensor]:
        made, on = self.program.made, torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)  # as in `Program.run`
        try:
            with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), thread_scope(self._way):
                if generators is None:
                    for step in steps:
                        step()
                else:
                    with generators.borrowed():
                        for step in steps:
                            step()
                copied(gradients, made)
                return [(r.get(made) if isinstance(r, Fetch) else r).clone() for r in results]
        finally:
            torch._C._set_grad_enabled(on)
            if self.program.setting is not None:
                precision.switch(self.program.setting)()


@dataclass(frozen=True)
class CompiledForward:
    """What replays a kind of forward and its backward.

    Attributes:
        halves: the program.
        targets: where the backward writes gradients.
        grads: memory that stands for the gradients of the outputs used.
        used: of the outputs that have gradients, whether each is used.
        differentiable: of the outputs, whether each has a gradient.
        learning: the parameters that may have gradients.
        passes: of the inputs that want a gradient, whether they get one.
        needs: the parameters, and the positions of the inputs, that the backward reads.
        changes: whether a call may change buffers or draws random numbers.
        alone: whether it returns one tensor, which has a gradient.
    """

    halves: Halves
    targets: list[Target]
    grads: list[Tensor]
    used: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    learning: list[nn.Parameter]
    passes: tuple[bool, ...]
    needs: tuple[list[nn.Parameter], list[int]]
    changes: bool
    alone: bool
