"""A call of an array made by one member's plain module alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hfta_nb.engine.comparison import nudge
from hfta_nb.engine.eager.attributes import AttributeKey, AttributesBefore, tracked_attributes, values_of
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.differentiate import add_to_grad
from hfta_nb.engine.eager.function_states import Place
from hfta_nb.engine.eager.functions_in_backward import unchanged
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
    result_outcome,
    stream_outcome,
    weighted_sum,
)
from hfta_nb.engine.eager.plain_copies import plain_member
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members import process_streams
from hfta_nb.engine.rules.autocast import uncast


class PlainGraph(NamedTuple):
    """What a plain module has computed, to be differentiated.

    Attributes:
        plain: the module.
        leaves: of its inputs.
        outputs: those that require a gradient.
    """

    plain: nn.Module
    leaves: list[Any]
    outputs: list[Tensor]


class _NudgedCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes the last bits of what is cast to a narrower dtype, by autocast or by the model."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default:
            narrower = args[0].is_floating_point() and found.itemsize < args[0].itemsize
            nudge([found] if narrower else (), matmul_precision.rounding, self._generator)
        return found


class PlainRun:
    """One member's plain module, with the inputs and random streams that the member has before the call.

    Args:
        state: of the array, before the call.
        member: the number of the member.
        inputs: of the call.
        computation: what the call computes.

    Attributes:
        answered: the plain module has returned; an error after that is one of its backward.
        graph: of a call that differentiates nothing itself; None if there is nothing to differentiate.
    """

    def __init__(self, state: ArrayState, member: int, inputs: Inputs, computation: Computation) -> None:
        self.state, self.member, self.computation = state, member, computation
        self.answered = False
        self.graph: PlainGraph | None = None
        self._leaves, self._own = copied_leaves(inputs.member(member)), inputs.per_member
        self._plain, self._slots = plain_member(state, member), state.slots_of(member)
        self._computed_before = [isinstance(v, Tensor) and not v.is_leaf for v in inputs.leaves]
        only = computation.only
        self._only = None if only is None else set(state.own(member, dict.fromkeys(only)))
        self._streams = dict(state.generators.states[member])
        self._kept = state.functions.snapshot().select([member]).of(0)
        self.process_streams = state.engine.process_streams.start()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Those of the plain module."""
        return dict(self._plain.named_parameters())

    def outcome(self, differentiate: bool = True) -> MemberOutcome:
        """What the plain module computes.

        Args:
            differentiate: compute the gradients of a weighted sum of the outputs too, if the call computes none.
        """
        found, self.graph = self._run(self._plain, None, differentiate)
        return found

    def outcome_of(self, plain: nn.Module) -> MemberOutcome:
        """What another module of the member's class computes."""
        return self._run(plain)[0]

    def gradients(self, grads: Sequence[Tensor | None] | None = None) -> MemberOutcome:
        """The gradients of the parameters and inputs after `outcome`, once.

        Args:
            grads: of the outputs; None for those of a weighted sum.
        """
        graph, self.graph = self.graph, None
        return self._of_graph(graph, grads)

    def nudged_outcome(self, plain: nn.Module, number: int, differentiate: bool = True) -> MemberOutcome:
        """What the plain module computes after the last bits of its parameters have changed: in TF32 the last that
        its factors keep. Those of what it casts to a narrower dtype change as well: its parameters' don't reach there.

        Without parameters (a loss of existing outputs), those of the member's own inputs change.

        Args:
            plain: a copy of the member before the call, to be changed.
            number: of the changes; others are others.
            differentiate: see `outcome`.
        """
        return self._nudged(plain, number, differentiate)[0]

    def nudged_gradients(self, plain: nn.Module, number: int, grads: Sequence[Tensor | None]) -> MemberOutcome:
        """The gradients after last bits have changed; see `nudged_outcome` and `gradients`."""
        return self._of_graph(self._nudged(plain, number, False)[1], grads)

    def _nudged(self, plain: nn.Module, number: int, differentiate: bool) -> tuple[MemberOutcome, PlainGraph | None]:
        learned = [p for p in plain.parameters() if p.is_floating_point()]
        generator = torch.Generator().manual_seed(number)
        nudge(learned, matmul_precision.rounding, generator)
        if learned:
            with _NudgedCasts(generator):
                return self._run(plain, None, differentiate)
        leaves = copied_leaves(self._leaves)
        with torch.no_grad():
            for v, own in zip(leaves, self._own, strict=True):
                if own and v.is_floating_point():
                    fewer = torch.randint(0, 2, v.shape, generator=generator).to(v)
                    v.mul_(1 - matmul_precision.rounding(v) * fewer)  # a probability stays within [0, 1]
        return self._run(plain, leaves, differentiate)

    def _run(
        self, plain: nn.Module, leaves: list[Any] | None = None, differentiate: bool = True
    ) -> tuple[MemberOutcome, PlainGraph | None]:
        """What a module of the member's class computes; the array's random streams are left unchanged.

        Parameters are part of it if they differ from the member's in the array.

        Args:
            plain: the module.
            leaves: of the inputs; None for those of the call.
            differentiate: see `outcome`.

        Returns:
            The outcome, and what can still be differentiated.
        """
        generators = self.state.generators
        leaves = copied_leaves(self._leaves) if leaves is None else leaves
        now = generators.states
        generators.keep(self.member, self._streams)
        try:
            with process_streams.began_at(self.process_streams), generators.member(self.member):
                found, graph = self._computed(plain, leaves, differentiate)
            streams = generators.states[self.member]
        finally:
            generators.states = now
        return found | stream_outcome(streams), graph

    def _state_of(self, plain: nn.Module) -> MemberOutcome:
        """The buffers of `plain`, and its parameters if they differ from the member's in the array."""
        found = {f"{BUFFER}{k}": v.detach() for k, v in plain.named_buffers() if k in self._slots.buffers}
        if not self._parameters_equal(plain):
            found |= {f"{PARAMETER}{k}": v.detach() for k, v in plain.named_parameters()}
        return found

    def _parameters_equal(self, plain: nn.Module) -> bool:
        """True if the parameters of `plain` are those of the member in the array, to the bit."""
        kept = self.state.parameters_of(self.member)
        own = dict(plain.named_parameters())
        return own.keys() == kept.keys() and all(torch.equal(p, kept[name]) for name, p in own.items())

    def _computed(
        self, plain: nn.Module, leaves: list[Any], differentiate: bool
    ) -> tuple[MemberOutcome, PlainGraph | None]:
        computation, slots, changes = self.computation, self._slots, dict[AttributeKey, Any]()
        functions, kept = self.state.functions, dict[Place, Any]()
        later: MemberOutcome = {}
        grads: MemberOutcome = {}
        given = functions.copied(self._kept)
        with tracked_attributes(plain, slots, {}, changes, deep=True, keep=True), functions.tracked(given, kept):
            result = computation.call(plain, self._given(leaves))
            self.answered = True
            found, outputs = result_outcome(result, None), differentiable(result)
            if computation.backward:
                scale = computation.scale
                loss = result[0]
                scaled = loss if scale is None else loss * scale[self.member].to(loss)
                grads = self._differentiated([scaled], None, plain, leaves)
        # Those too that the member has set in the array: the plain module may have put them back.
        places = {**self.state.engine.attributes.of(self.member), **changes}
        state = self._state_of(plain) | attribute_outcome(values_of(plain, slots, places))
        state |= functions.outcome({**given, **kept})
        learns = not computation.backward and torch.is_grad_enabled() and outputs
        graph = PlainGraph(plain, leaves, outputs) if learns else None
        if graph is not None and differentiate:
            state = {k: v.clone() if k.startswith((BUFFER, PARAMETER)) else v for k, v in state.items()}
            before = AttributesBefore(plain, slots)
            grads, graph = self._of_graph(graph, None), None
            now = {k: v for k, v in self._state_of(plain).items() if k not in state or not torch.equal(v, state[k])}
            later = later_outcome(now | attribute_outcome(before.changes()))
        return found | grads | state | later, graph

    def _given(self, leaves: Sequence[Any]) -> list[Any]:
        """The inputs, of which those that were computed are no leaves here either: a loss may write into an output."""
        given: dict[int, Tensor] = {}
        for v, computed in zip(leaves, self._computed_before, strict=True):
            if computed and isinstance(v, Tensor) and v.requires_grad and id(v) not in given:
                given[id(v)] = v.clone()
        return [given.get(id(v), v) for v in leaves]

    def _of_graph(self, graph: PlainGraph | None, grads: Sequence[Tensor | None] | None) -> MemberOutcome:
        """The gradients of what a plain module has computed; see `gradients`."""
        if graph is None:
            return {}
        if grads is None:
            return self._differentiated([weighted_sum(graph.outputs)], None, graph.plain, graph.leaves)
        pairs = [(v, g) for v, g in zip(graph.outputs, grads, strict=True) if g is not None]
        return self._differentiated([v for v, _ in pairs], [g for _, g in pairs], graph.plain, graph.leaves)

    def _differentiated(
        self, outputs: Sequence[Tensor], grads: Sequence[Tensor] | None, plain: nn.Module, leaves: list[Any]
    ) -> MemberOutcome:
        """The gradients of parameters and inputs for those of the outputs; None for a number."""
        with uncast(), unchanged(self.state.functions), unseen_by_hooks(plain):
            if grads is None:
                torch.autograd.backward(outputs)
            else:
                add_to_grad(outputs, grads)
        only = self._only
        wanted = {
            name: p.grad for name, p in plain.named_parameters() if p.requires_grad and (only is None or name in only)
        }
        given = {id(v): v for v in leaves if isinstance(v, Tensor) and v.requires_grad}
        return gradient_outcome([*wanted], [*wanted.values()], [v.grad for v in given.values()])
