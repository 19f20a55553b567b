"""The backward of a verified `array(x)`, which belongs to the caller.

The caller gets one node in place of the graph of the call. Its backward runs that graph, and compares the gradients of
one member with those of its plain module before they reach `.grad`. If they differ, or the graph can't be
differentiated, the call is repeated with other settings, and the node returns the gradients of that call. Gradients
that differ no more than those of the plain module do when its last bits change count as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.autograd_nodes import nodes, own_function, reached
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.compare_outcomes import differences
from hfta_nb.engine.eager.differentiate import vector_jacobian
from hfta_nb.engine.eager.member_outcome import MemberOutcome, differentiable, gradient_outcome
from hfta_nb.engine.eager.plain_copies import plain_member
from hfta_nb.engine.eager.plain_run import PlainRun
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.engine.members.tree import flatten, unflatten, versions
from hfta_nb.engine.rules import autocast
from hfta_nb.errors import FusionError, out_of_memory

_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")


def comparable_later(state: ArrayState, inputs: Inputs) -> bool:
    """True if the gradients of this call may be compared in the caller's backward.

    Hooks, and members that run alone, may change the module in the backward; a shared input gets the sum of all
    members' gradients; parameters of `torch.func.functional_call` may have a graph.
    """
    engine, settings = state.engine, state.settings
    leaves = zip(inputs.leaves, inputs.per_member, strict=True)
    return not (
        settings.block_size == 1
        or engine.one_by_one
        or engine.architectures is not None
        or torch._C._functorch.maybe_current_level()
        or torch.autograd.forward_ad._current_level >= 0
        or any(isinstance(v, Tensor) and v.requires_grad and not own for v, own in leaves)
        or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in state.tensors.parameters())
        or any(m._backward_hooks or m._backward_pre_hooks for m in state.skeleton.modules())
        or state.swapped()
    )


def without_effects(state: ArrayState, result: Any) -> bool:
    """True if this result's backward changes nothing that the model holds, and nothing else refers to its graph."""
    engine = state.engine
    if (
        engine.attributes.values
        or state.functions.values.values
        or engine.process_streams.drawn
        or any(hook in used for hook in _HOOKS for used in engine.used)
    ):
        return False
    return not any(map(own_function, nodes(differentiable(result))))


def warn_of_failure(state: ArrayState, member: int, error: Exception) -> None:
    """Tell, once, that the plain module raises where the array does not, so that nothing can be compared."""
    text = f"the plain module of member {member} raises where the array does not, so the two can't be compared"
    note = f"{text}: {type(error).__name__}: {error}".splitlines()[0]
    if state.settings.remark(note):
        warn(f"{note}; see explain()")


class Repeat:
    """Repeats a call in the caller's backward; created after the call.

    Args:
        state: of the array.
        inputs: of the call.
        restore: puts back what the call has changed.
        run: makes the call, with gradients compared at once.
    """

    def __init__(self, state: ArrayState, inputs: Inputs, restore: Callable[[], None], run: Callable[[], Any]) -> None:
        self.state, self.inputs, self._restore, self._run = state, inputs, restore, run
        self._arenas, self._training, self._given = state.arenas, state.skeleton.training, versions(inputs.leaves)
        self.autocasts, self._settings = autocast.active(), state.settings.copy()

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """The context in which the array is as it was before the call.

        Raises:
            FusionError: an input or the array has changed since the call.
        """
        state = self.state
        same = state.arenas is self._arenas and state.skeleton.training == self._training
        if not same or versions(self.inputs.leaves) != self._given:
            raise FusionError(
                "the backward has to compute the forward again, but since then an input or the array has changed",
                where="array(x)",
                remedy="change them after the backward, or use array.backward, which computes both at once",
            )
        after = state.snapshot(every=True)
        self._restore()
        try:
            with torch.enable_grad(), autocast.activated(self.autocasts):
                yield
        finally:
            after()

    def outputs(self) -> tuple[list[Tensor], bool]:
        """The outputs to differentiate, and whether settings of the array have changed since the call."""
        with self.rewound():
            result = self._run()
        return differentiable(result), vars(self._settings) != vars(self.state.settings)


class CallerBackward:
    """Differentiates what a call has returned, the first time with a comparison.

    Args:
        repeat: repeats the call.
        member: the number of the member that is compared.
        result: of the call.
        plain_run: the same call of the member's plain module.
        compared: called when the gradients of all outputs have been compared.

    Attributes:
        wrong: the call has been repeated with other settings, and its own graph is not used any more.
    """

    def __init__(
        self,
        repeat: Repeat,
        member: int,
        result: Any,
        plain_run: PlainRun,
        compared: Callable[[], None],
    ) -> None:
        self.repeat, self.member, self.compared, self.wrong = repeat, member, compared, False
        self.state, self.inputs = state, inputs = repeat.state, repeat.inputs
        self.plain_run: PlainRun | None = plain_run
        self.outputs = differentiable(result)
        # Others are left out: a node that gives a parameter no gradient still calls its hooks.
        used = reached(self.outputs)
        named = [(name, p) for name, p in state.tensors.named_parameters() if id(p) in used]
        self.names = [name for name, _ in named]
        self.roots = [*(p for _, p in named), *inputs.grad_leaves()]

    def attached(self, result: Any) -> Any:
        """The result as the caller gets it: functions of the parameters and inputs."""
        leaves, rebuild = flatten(result)
        handed_out = iter(_Compared.apply(self, [v.detach() for v in self.outputs], *self.roots))  # type: ignore[no-untyped-call]
        own = {id(v) for v in self.outputs}
        return unflatten(rebuild, [next(handed_out) if id(v) in own else v for v in leaves])

    def gradients(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients of the roots for those of the outputs."""
        plain_run, self.plain_run = self.plain_run, None
        if self.wrong or torch.is_grad_enabled():  # a later backward through gradients that have a graph comes here too
            return self._of_repeated(grads)
        try:
            found = self._differentiated(self.outputs, grads)
        except Exception as error:
            if plain_run is None or out_of_memory(error):
                raise
            repeated = self._of_repeated(grads)
            if not self.wrong:
                raise
            return repeated
        if plain_run is None or all(g is None for g in grads) or self._equal(plain_run, grads, found):
            return found
        repeated = self._of_repeated(grads)
        return repeated if self.wrong else found

    def _of_repeated(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients of a repeated call, which has a graph of its own."""
        outputs, changed = self.repeat.outputs()
        self.wrong = self.wrong or changed
        return self._differentiated(outputs, grads)

    def _differentiated(self, outputs: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        pairs = [(v, g) for v, g in zip(outputs, grads, strict=True) if g is not None]
        if not pairs:
            return [None for _ in self.roots]
        create = torch.is_grad_enabled()
        retain = create or torch._C._autograd._get_current_graph_task_keep_graph()
        return vector_jacobian([v for v, _ in pairs], self.roots, [g for _, g in pairs], retain, create)

    def _equal(self, plain_run: PlainRun, grads: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> bool:
        """True if the member has the gradients of its plain module."""
        own = [None if g is None else g.detach()[self.member] for g in grads]
        together = self._of_member(found)
        with torch.no_grad():
            try:
                alone = plain_run.gradients(own)
            except Exception as error:
                if not out_of_memory(error):
                    warn_of_failure(self.state, self.member, error)
                self.compared()
                return True
        try:
            with autocast.activated(self.repeat.autocasts):  # as gradients that come from 16-bit numbers
                off = differences(together, alone, lambda key: True, partial(self._nudged, plain_run, own))
        except Exception:  # of a member; repeating the call, which follows, raises it as well
            return False
        if not off and all(g is not None and bool(g.any()) for g in own):
            self.compared()
        return not off

    def _nudged(self, plain_run: PlainRun, grads: Sequence[Tensor | None], number: int) -> MemberOutcome:
        """The gradients after last bits have changed."""
        with self.repeat.rewound():
            return plain_run.nudged_gradients(plain_member(self.state, self.member), number, grads)

    def _of_member(self, found: Sequence[Tensor | None]) -> MemberOutcome:
        count = len(self.names)
        own = [None if g is None else g.detach()[self.member] for g in found[:count]]
        return gradient_outcome(self.names, own, self.inputs.of_member(found[count:], self.member))


class _Compared(torch.autograd.Function):
    """The outputs of a verified call, as functions of parameters and inputs."""

    @staticmethod
    def forward(ctx: Any, backward: CallerBackward, outputs: list[Tensor], *roots: Tensor) -> tuple[Tensor, ...]:
        ctx.backward_of_call = backward
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.backward_of_call.gradients(grads))
