"""A recorded forward and its backward as one program that runs in two parts.

Both parts share their memory: values of the forward that the backward needs stay in place, so that only one backward
can be outstanding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hfta_nb.members.threads import thread_scope
from hfta_nb.replay.delivery import Target
from hfta_nb.replay.program import Program


class Halves:
    """A program that is split into forward and backward.

    Args:
        ready: the program.
        results: how many of its results belong to the forward; the others belong to the backward.
        way: see `FusedArray.threads`.
    """

    def __init__(self, ready: Program, results: int, way: str) -> None:
        self.program, self._way = ready, way
        self._forward, self._backward = ready.steps[: ready.cut], ready.steps[ready.cut :]
        self._outputs, self._inputs = ready.results[:results], ready.results[results:]
        self.serial = 0
        """The number of the last forward, whose values are in memory."""

    def forward(self) -> list[Tensor]:
        """Compute the outputs."""
        self.serial += 1
        with thread_scope(self._way):
            return self.program.execute(self._forward, self._outputs, (), self.program.generators)

    def backward(self) -> list[Tensor]:
        """Write the gradients to their destinations; returns those of the inputs. Once after each forward."""
        self.serial += 1
        with thread_scope(self._way):  # the backward draws no numbers
            results = self.program.execute(self._backward, self._inputs, self.program.gradients, None)
        for storage in self.program.left:
            self.program.made[storage] = None
        return results


@dataclass(frozen=True)
class CompiledForward:
    """Replays a kind of forward and its backward.

    Attributes:
        halves: the program.
        targets: destinations of the gradients.
        grads: memory that replaces the gradients of the used outputs.
        used: for each output with a gradient, whether it is used.
        differentiable: for each output, whether it has a gradient.
        learning: the parameters that may have gradients.
        passes: for each input that requires a gradient, whether it gets one.
        needs: the parameters, and the positions of the inputs, that the backward reads.
        changes: whether a call may change buffers or draw random numbers.
        alone: whether it returns a single tensor with a gradient.
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
