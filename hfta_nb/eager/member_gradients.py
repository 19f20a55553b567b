"""Gradients of one member's outputs, where the caller of the array differentiates them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.eager.after_backward import Rows
from hfta_nb.eager.autograd_nodes import nodes, own_function
from hfta_nb.eager.engine import Block, Inputs
from hfta_nb.eager.outcome import (
    BUFFER,
    PARAMETER,
    Computation,
    MemberOutcome,
    attribute_outcome,
    copied_leaves,
    differentiable,
    gradient_outcome,
    later_outcome,
    weighted_sum,
)
from hfta_nb.eager.state import ArrayState
from hfta_nb.rules.autocast import uncast

_FEW, _LONG_S = 3, 6e-3
"""Blocks are not differentiated as a whole if their plain modules, except the first number, take longer than this."""


class MemberGradients:
    """Differentiates what a call has returned for one member.

    Args:
        state: of the array.
        restore: puts back what the call changes.
        inputs: of the call.
        computation: what the call computes.
        member: the number of the member.
    """

    def __init__(
        self,
        state: ArrayState,
        restore: Callable[[], None],
        inputs: Inputs,
        computation: Computation,
        member: int,
    ) -> None:
        self.state, self.restore, self.inputs = state, restore, inputs
        self.computation, self.member = computation, member

    def outcome(self, ran: Sequence[tuple[Block, Inputs, Any]], plain_s: float) -> MemberOutcome:
        """The gradients of a weighted sum of the member's outputs.

        Args:
            ran: the blocks that ran, with their inputs and results.
            plain_s: how long the member's plain module took for the call.
        """
        found = [one for one in ran if one[0].start <= self.member < one[0].stop]
        if not found:
            return {}
        block, inputs, result = found[-1]
        row = self.member - block.start
        outputs = [v[row] for v in differentiable(result)]
        if not outputs:
            return {}
        total = weighted_sum(outputs)
        # A backward through all members of a block may take longer than a new call of two.
        many = (block.stop - block.start - _FEW) * plain_s > _LONG_S
        # Hooks on tensors may change the graph (remove themselves); members that run alone may have some.
        alone = block.single or bool(self.state.engine.one_by_one)
        if many or alone or any(map(own_function, nodes([total]))):
            return self._recomputed()
        names = [name for name, p in block.parameters.items() if p.requires_grad]
        with uncast():
            wanted = [*(block.parameters[name] for name in names), *inputs.grad_leaves()]
            grads = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
        return self._named(names, grads, inputs, None if block.single else row)

    def _named(
        self, names: Sequence[str], grads: Sequence[Tensor | None], inputs: Inputs, row: int | None
    ) -> MemberOutcome:
        own = [g if row is None or g is None else g[row] for g in grads[: len(names)]]
        return gradient_outcome(names, own, inputs.of_member(grads[len(names) :], self.member))

    def _recomputed(self) -> MemberOutcome:
        """The gradients from a separate call: custom functions may change the module's state in their backward."""
        after = self.state.snapshot()
        self.restore()
        try:
            with self.state.engine.other_member_modules():
                return self._from_separate_call()
        finally:
            after()

    def _from_separate_call(self) -> MemberOutcome:
        """Runs a block around the member whose tensors are copies, and differentiates it by autograd."""
        state, m = self.state, self.member
        single = state.settings.block_size == 1
        start = m if single else max(0, m - 1)

        def part(tensor: Tensor, apart: bool = False) -> Tensor:
            own = tensor.detach()[start : m + 1].clone().requires_grad_(tensor.requires_grad)
            return own if apart or not single else own.detach()[0].requires_grad_(tensor.requires_grad)

        as_plain = state.engine.as_plain  # then, parameters are no leaves
        leaves = {name: part(p, as_plain) for name, p in state.tensors.named_parameters()}
        rows_of: Any = Rows.apply
        parameters = {name: rows_of(p)[0] for name, p in leaves.items()} if as_plain else leaves
        buffers = {name: part(b) for name, b in state.tensors.named_buffers()}
        inputs = Inputs(tuple(copied_leaves(self.inputs.leaves)), self.inputs.per_member, self.inputs.rebuild, True)
        result = state.engine.run(Block(start, m + 1, single, parameters, buffers), self.computation.call, inputs)
        row = 0 if single else m - start
        if not differentiable(result):
            return {}
        total = weighted_sum([v[row] for v in differentiable(result)])
        with uncast():
            torch.autograd.backward(total)
        names = [name for name, p in parameters.items() if p.requires_grad]
        grads = [leaves[name].grad for name in names] + [v.grad for v in inputs.grad_leaves()]
        if not as_plain:
            return self._named(names, grads, inputs, None if single else row)
        own = [g if g is None else g[0] for g in grads[: len(names)]]
        found = gradient_outcome(names, own, inputs.of_member(grads[len(names) :], m))
        return found | self._later(parameters, buffers)

    def _later(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> MemberOutcome:
        """What a member that runs alone holds after the backward."""
        engine, m = self.state.engine, self.member
        now = {f"{PARAMETER}{name}": p.detach() for name, p in parameters.items()}
        now |= {f"{BUFFER}{name}": b for name, b in buffers.items()}
        now |= {f"{BUFFER}{name}": rows[m] for name, rows in engine.resized_buffers.items() if m in rows}
        return later_outcome(now | attribute_outcome(engine.attributes.of(m)))
