"""Gradients of one member's outputs, where the caller of the array differentiates them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.after_backward import Rows
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.engine import Block
from hfta_nb.engine.eager.hooks_in_backward import unseen_by_hooks
from hfta_nb.engine.eager.member_outcome import (
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
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.rules.autocast import uncast


@dataclass(eq=False)
class MemberGradients:
    """Differentiates what a call has returned for one member.

    Args:
        state: of the array.
        restore: puts back what the call changes.
        inputs: of the call.
        computation: what the call computes.
        member: the number of the member.
    """

    state: ArrayState
    restore: Callable[[], None]
    inputs: Inputs
    computation: Computation
    member: int

    def outcome(self) -> MemberOutcome:
        """The gradients of a weighted sum of the member's outputs, from a separate call.

        The graph of the caller is left alone: custom functions may change the module's state in their backward.
        """
        after = self.state.snapshot(every=True)
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
        start, stop = m if single else max(0, m - 1), m + 1
        if state.engine.architectures is not None and not single:  # how members are padded depends on all of the block
            start = m - m % state.settings.block_size
            stop = min(start + state.settings.block_size, len(state))

        def part(tensor: Tensor, apart: bool = False) -> Tensor:
            own = tensor.detach()[start:stop].clone().requires_grad_(tensor.requires_grad)
            return own if apart or not single else own.detach()[0].requires_grad_(tensor.requires_grad)

        as_plain = state.engine.as_plain  # then, parameters are no leaves
        leaves = {name: part(p, as_plain) for name, p in state.tensors.named_parameters()}
        rows_of: Any = Rows.apply
        parameters = {name: rows_of(p)[0] for name, p in leaves.items()} if as_plain else leaves
        buffers = {name: part(b) for name, b in state.tensors.named_buffers()}
        inputs = Inputs(tuple(copied_leaves(self.inputs.leaves)), self.inputs.per_member, self.inputs.rebuild, [])
        result = state.engine.run(Block(start, stop, single, parameters, buffers), self.computation.call, inputs)
        row = m - start
        if not differentiable(result):
            return {}
        total = weighted_sum([v[row] for v in differentiable(result)])
        with uncast(), unseen_by_hooks(*state.models):
            torch.autograd.backward(total)
        names = [name for name, p in parameters.items() if p.requires_grad]
        grads = [leaves[name].grad for name in names] + [v.grad for v in inputs.grad_leaves()]
        whole = single and not as_plain  # then, parameters have no axis of members
        own = [g if g is None or whole else g[row] for g in grads[: len(names)]]
        of_parameters = state.own(m, dict(zip(names, own, strict=True)))
        found = gradient_outcome([*of_parameters], [*of_parameters.values()], inputs.of_member(grads[len(names) :], m))
        return found | self._later(parameters, buffers) if as_plain else found

    def _later(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> MemberOutcome:
        """What a member that runs alone holds after the backward."""
        engine, m, own = self.state.engine, self.member, self.state.own
        now = {f"{PARAMETER}{name}": p.detach() for name, p in own(m, parameters).items()}
        now |= {f"{BUFFER}{name}": b for name, b in own(m, buffers).items()}
        now |= {f"{BUFFER}{name}": rows[m] for name, rows in engine.resized_buffers.items() if m in rows}
        return later_outcome(now | attribute_outcome(engine.attributes.of(m)))
