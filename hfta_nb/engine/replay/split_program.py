"""A recorded forward and its backward as one program that runs in two parts.

Both parts share their memory: values of the forward that the backward needs stay in place, so that only one backward
can be outstanding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hfta_nb.engine.kernels.capture import Part, Run
from hfta_nb.engine.members.threads import thread_scope
from hfta_nb.engine.replay.program import Program, Section


@dataclass(eq=False, kw_only=True)
class SplitProgram(Program):
    """Replays a kind of forward and its backward.

    Its results are the outputs, then the gradients of inputs; its graphs are one each for forward and backward.

    Attributes:
        threads: of the backward; see `FusedArray.threads`.
        output_grads: memory that replaces the gradients of the used outputs.
        used: for each output with a gradient, whether it is used.
        differentiable: for each output, whether it has a gradient.
        learning: the parameters that may have gradients.
        passes: for each input that requires a gradient, whether it gets one.
        needs: the parameters, and the positions of the inputs, that the backward reads.
        serial: the number of the last forward, whose values are in memory.
    """

    threads: str
    output_grads: list[Tensor]
    used: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    learning: list[nn.Parameter]
    passes: tuple[bool, ...]
    needs: tuple[list[nn.Parameter], list[int]]
    serial: int = 0

    def __post_init__(self) -> None:
        outputs = len(self.differentiable)
        self._forward = Section(self.steps[: self.cut], self.results[:outputs], (), self.generators)
        self._backward = Section(self.steps[self.cut :], self.results[outputs:], self.gradients, None)

    def forward(self) -> list[Tensor]:
        """Compute the outputs."""
        self.serial += 1
        return self._part(0, self._run_forward)

    def backward(self) -> list[Tensor]:
        """Write the gradients to their destinations; returns those of the inputs. Once after each forward."""
        self.serial += 1
        return self._part(1, self._run_backward)

    def run(self) -> list[Tensor]:
        """Run forward and backward; returns the results of both."""
        return [*self.forward(), *self.backward()]

    def parts(self) -> Sequence[Part]:
        """See `Graphed`. The backward draws no numbers."""
        return Part(self._run_forward, self.draws), Part(self._run_backward, draws=False)

    def _part(self, number: int, run: Run) -> list[Tensor]:
        results: list[Tensor] = self.graphs[number].run() if self.graphs else run()
        return results

    def _run_forward(self) -> list[Tensor]:
        return self.execute(self._forward)

    def _run_backward(self) -> list[Tensor]:
        with thread_scope(self.threads):
            results = self.execute(self._backward)
        self._release()
        return results
