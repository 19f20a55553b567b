"""A program: the kernel calls of a recorded step, ready to run on memory that is laid out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hfta_nb.engine.kernels.capture import Graph, Part
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import Choice
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.dynamic_call import Fetch, copied
from hfta_nb.engine.replay.parallel_branches import ParallelBranches
from hfta_nb.engine.replay.source import Decision, Source


class Section(NamedTuple):
    """Steps of a program that run at once, and what they give; see `Program`."""

    steps: Sequence[Callable[[], Any]]
    results: Sequence[Tensor | Fetch]
    gradients: Sequence[tuple[Tensor, Tensor | Fetch]]
    generators: MemberGenerators | None


@dataclass(eq=False)
class Program:
    """A program that is ready to run.

    Attributes:
        steps: called one after another.
        results: tensors, or functions that return them; in the order of `outputs`.
        gradients: source and destination of each gradient that is not written to its destination directly.
        made: by storage, tensors created in the run.
        generators: of the members; None if no step enters them.
        setting: of oneDNN's products, to be restored after a run that changes it; None if none does.
        choices: of kernels with several variants.
        cut: how many of the steps belong to the first of two halves.
        source: the calls and tensors that it was created from.
        decision: whether it is compiled.
        branches: what the first step runs on several threads; None if it does not.
        graphs: runs instead of the steps, if it is not empty.
        draws: whether it draws random numbers of the members.
        targets: of the gradients of parameters.
    """

    steps: list[Callable[[], Any]]
    results: list[Tensor | Fetch]
    gradients: list[tuple[Tensor, Tensor | Fetch]]
    made: list[Any]
    generators: MemberGenerators | None
    slots: list[Tensor]
    left: list[int]
    setting: str | None = None
    choices: Sequence[Choice] = ()
    cut: int = 0
    source: Source | None = None
    decision: Decision = field(default_factory=Decision)
    branches: ParallelBranches | None = None
    graphs: Sequence[Graph] = ()
    draws: bool = False
    targets: Sequence[Target] = ()

    def run(self) -> list[Tensor]:
        """Compute; returns the results in memory of their own, and writes gradients to their destinations."""
        if self.graphs:
            results: list[Tensor] = self.graphs[0].run()
            return results
        return self.launched()

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of 16-bit numbers that it computes with; None if there are none."""
        return None if self.source is None else self.source.half

    def parts(self) -> Sequence[Part]:
        """See `Graphed`."""
        return (Part(self.launched, self.draws),)

    def launched(self) -> list[Tensor]:
        """The same without graphs: compiled, or kernel by kernel."""
        return self.kernel_by_kernel() if self.decision.compiled is None else self.decision.compiled()

    def kernel_by_kernel(self) -> list[Tensor]:
        """The same as recorded."""
        results = self.execute(Section(self.steps, self.results, self.gradients, self.generators))
        self._release()
        return results

    def _release(self) -> None:
        """Release the tensors of a run."""
        for storage in self.left:
            self.made[storage] = None

    def execute(self, section: Section) -> list[Tensor]:
        """Run a section, below autograd and autocast; returns its results in memory of their own."""
        if self.setting is None:
            return self._executed(section)
        with matmul_precision.switching():
            return self._executed(section)

    def _executed(self, section: Section) -> list[Tensor]:
        steps, results, gradients, generators = section
        made, on = self.made, torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)  # some kernels read this; all kernels run below autograd here
        try:
            # The trace contains the casts of an active autocast.
            with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
                if generators is None:  # without a context, which would cost as much as a small kernel
                    for step in steps:
                        step()
                else:
                    with generators.borrowed():
                        for step in steps:
                            step()
                copied(gradients, made)
                return [r.result(made) if isinstance(r, Fetch) else r.clone() for r in results]
        finally:
            torch._C._set_grad_enabled(on)
            if self.setting is not None:
                matmul_precision.switch(self.setting)()
