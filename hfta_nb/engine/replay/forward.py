"""`array(x)` with gradients, replayed, or recorded with its backward; the loss in between belongs to the caller.

Two calls run eagerly and are recorded; then random gradients are sent back through the outputs, to record the backward
too. The caller gets autograd's own graph, unaffected by the recording. A replayed call is one node of the graph: its
forward runs the first half of the program, its backward the second.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.blocks import graph_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.recomputation import in_backward
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.halves import ForwardEntry
from hfta_nb.engine.replay.node import Run, SavedContext, attached
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.recorded_forward import recorded
from hfta_nb.engine.replay.signature import form
from hfta_nb.engine.replay.verify import Before


class CapturedForwards:
    """The forwards of an array with gradients.

    Attributes:
        cache: their programs.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.cache: ProgramCache[ForwardEntry] = ProgramCache(state)
        self._outstanding: weakref.ref[SavedContext] | None = None

    def learning(self) -> bool:
        """True if gradients of parameters may be needed."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self.cache.parameters)

    def learns(self, inputs: Inputs) -> bool:
        """True if any gradient may be needed."""
        return self.learning() or (torch.is_grad_enabled() and bool(inputs.grad_leaves()))

    def find(self, given: Any) -> ForwardEntry | None:
        """The entry of a call; None if it must run eagerly."""
        return self.cache.find(
            lambda: (form(given, grads=True), tuple(p.requires_grad for p in self.cache.parameters)), ForwardEntry
        )

    # Replaying.

    def again(self, inputs: Inputs, run: Run) -> Any:
        """Fast path: the replayed output, if this call's signature equals the last one's; else None.

        Args:
            inputs: all tensors.
            run: computes the outputs eagerly.
        """
        if self.cache.last is None or in_backward() or not self.cache.repeats(inputs.leaves):
            return None
        found = self.replay(self.cache.last, inputs, run)
        return None if found is None else found[0]

    def remember(self, entry: ForwardEntry, tensors: tuple[Tensor, ...]) -> None:
        """Remember that a call with these inputs was replayed, for `again`, if its output is one tensor."""
        self.cache.remember(entry, tensors if entry.made is not None and entry.made.alone else None)

    def outstanding(self) -> bool:
        """True if a later backward needs the content of the program's memory."""
        before = None if self._outstanding is None else self._outstanding()
        return before is not None and not before.spent

    def replay(self, entry: ForwardEntry | None, inputs: Inputs, run: Run) -> tuple[Any] | None:
        """The outputs in a tuple; None if this call must run eagerly."""
        if entry is None or entry.made is None or self.outstanding():
            return None
        made = entry.made
        start = Before.replay(self.state, made.program.draws)

        def run_forward() -> list[Tensor]:
            entry.prepare(self.state, made)
            return made.forward()

        found = self.cache.replay(entry, inputs.leaves, run_forward, "the model", start)
        if found is None:
            return None
        outputs = found[0]
        ticket = SavedContext(self.state, entry, inputs, run, start)
        self._outstanding = weakref.ref(ticket)
        roots = (*made.learning, *inputs.grad_leaves())
        if made.alone:
            return attached(ticket, (outputs[0],), *roots)  # type: ignore[return-value]
        kinds = made.differentiable
        left = iter(attached(ticket, tuple(t for t, d in zip(outputs, kinds, strict=True) if d), *roots))
        return (entry.told([next(left) if d else t for t, d in zip(outputs, kinds, strict=True)]),)

    # Recording.

    def recorder(self, entry: ForwardEntry | None, run: Run) -> Callable[[Inputs], Any]:
        """A function that runs a call, and records it with its backward if it may be replayed."""

        def record(entry: ForwardEntry, inputs: Inputs, guards: Guards) -> Any:
            return recorded(self.state, entry, inputs, run, guards)

        return self.cache.recorder(
            entry, self.state.called, record, lambda inputs: run(inputs, graph_blocks(self.state))
        )
