"""A recorded forward and its backward as one program that runs in two parts, and the cache entry of such calls.

Both parts share their memory: values of the forward that the backward needs stay in place, so that only one backward
can be outstanding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from hfta_nb.engine.members.threads import thread_scope
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.program_graphs import Part, PartGraph

_PATTERNS = 3
"""After this many changes of which outputs are used, a kind of call is recorded no more."""


@dataclass(eq=False)
class CompiledForward:
    """Replays a kind of forward and its backward.

    Attributes:
        program: its results are the outputs, then the gradients of inputs.
        threads: see `FusedArray.threads`.
        targets: destinations of the gradients of parameters.
        grads: memory that replaces the gradients of the used outputs.
        used: for each output with a gradient, whether it is used.
        differentiable: for each output, whether it has a gradient.
        learning: the parameters that may have gradients.
        passes: for each input that requires a gradient, whether it gets one.
        needs: the parameters, and the positions of the inputs, that the backward reads.
        alone: whether it returns a single tensor with a gradient.
        serial: the number of the last forward, whose values are in memory.
        graphs: one each for forward and backward; empty if they run kernel by kernel.
    """

    program: Program
    threads: str
    targets: list[Target]
    grads: list[Tensor]
    used: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    learning: list[nn.Parameter]
    passes: tuple[bool, ...]
    needs: tuple[list[nn.Parameter], list[int]]
    alone: bool
    serial: int = 0
    graphs: Sequence[PartGraph] = ()

    def __post_init__(self) -> None:
        steps, results, outputs = self.program.steps, self.program.results, len(self.differentiable)
        self._forward = steps[: self.program.cut], results[:outputs], ()
        self._backward = steps[self.program.cut :], results[outputs:], self.program.gradients

    def forward(self) -> list[Tensor]:
        """Compute the outputs."""
        self.serial += 1
        return self.graphs[0].run() if self.graphs else self._run_forward()

    def backward(self) -> list[Tensor]:
        """Write the gradients to their destinations; returns those of the inputs. Once after each forward."""
        self.serial += 1
        return self.graphs[1].run() if self.graphs else self._run_backward()

    def both(self) -> list[Tensor]:
        """Run forward and backward; returns the results of both."""
        return [*self.forward(), *self.backward()]

    def parts(self) -> Sequence[tuple[Part, bool]]:
        """See `Graphed`. The backward draws no numbers."""
        return (self._run_forward, self.program.draws), (self._run_backward, False)

    def _run_forward(self) -> list[Tensor]:
        with thread_scope(self.threads):
            return self.program.execute(*self._forward, self.program.generators)

    def _run_backward(self) -> list[Tensor]:
        with thread_scope(self.threads):
            results = self.program.execute(*self._backward, None)
        for storage in self.program.left:
            self.program.made[storage] = None
        return results


@dataclass
class ForwardEntry(CacheEntry):
    """A kind of forward with gradients.

    Attributes:
        made: the compiled forward, once there is one.
        grads: memory that replaces the gradients of the used outputs.
        used: for each output with a gradient, whether it is used; None if that is unknown.
        changes: how often `used` has changed.
    """

    made: CompiledForward | None = None
    grads: list[Tensor] = field(default_factory=list)
    used: tuple[bool, ...] | None = None
    changes: int = 0

    @property
    def ready(self) -> bool:
        return self.made is not None

    def drop(self) -> None:
        super().drop()
        self.made = None

    def other_outputs(self, used: tuple[bool, ...]) -> None:
        """Record that the caller's loss uses other outputs than expected, so that other gradients are None."""
        self.changes += 1
        self.used, self.grads = used, []
        self.refuse("the outputs that are used differ from call to call", forget=self.changes <= _PATTERNS)
