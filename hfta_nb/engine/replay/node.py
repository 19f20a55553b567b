"""The node of a replayed `array(x)` in the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.differentiate import vector_jacobian
from hfta_nb.engine.members.tree import flatten, versions
from hfta_nb.engine.replay.array_call import ArrayCall
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.delivery import assign_grads, delivered, gradient_copies, written
from hfta_nb.engine.replay.signature import watched
from hfta_nb.engine.replay.split_program import SplitProgram
from hfta_nb.engine.replay.verify import Before, failure
from hfta_nb.engine.rules import autocast
from hfta_nb.errors import FusionError

SPENT = "Trying to backward through the graph a second time, without retain_graph=True the first"
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a parameter or an "
    "input of array(x), since it was called"
)


class SavedContext:
    """Everything that the backward of one replayed forward needs.

    Args:
        entry: of its kind of call.
        program: which has just run.
        call: the call.
        start: buffers and generators before the call; None if it does not change them.
    """

    __slots__ = (
        *("state", "entry", "start", "call", "program", "guards", "arenas", "serial"),
        *("_read", "_given", "_autocast", "__weakref__"),
    )

    def __init__(self, entry: CacheEntry, program: SplitProgram, call: ArrayCall, start: Before | None) -> None:
        self.state, self.entry, self.start, self.program = call.state, entry, start, program
        self.call: ArrayCall | None = call
        self.guards, self.arenas = entry.guards, self.state.arenas
        self.serial = program.serial
        self._read = [p._version for p in program.needs[0]]
        self._given = versions(call.leaves)
        self._autocast = autocast.active() if torch._C._is_any_autocast_enabled() else ()

    def attached(self, outputs: Sequence[Tensor]) -> Any:
        """The result of the call, whose outputs are part of the graph."""
        assert self.call is not None  # no backward yet
        kinds = self.program.differentiable
        roots = *self.program.learning, *self.call.inputs.grad_leaves()
        if False not in kinds:
            return self.entry.rebuilt(_apply(self, tuple(outputs), *roots))
        left = iter(_apply(self, tuple(t for t, d in zip(outputs, kinds, strict=True) if d), *roots))
        return self.entry.rebuilt([next(left) if d else t for t, d in zip(outputs, kinds, strict=True)])

    @property
    def spent(self) -> bool:
        """True if the forward's values in memory have been overwritten."""
        return self.program.serial != self.serial

    def gradients(self, nodes: Sequence[Any], wanted: Sequence[bool], grads: Sequence[Tensor | None]) -> list[Any]:
        """The gradients of the roots; None for those that are already delivered.

        Args:
            nodes: of the roots, in the graph.
            wanted: for each root, whether its gradient is needed.
            grads: of the outputs.
        """
        self._unchanged()
        watching = torch.is_grad_enabled() or torch._C._is_any_autocast_enabled() or watched()
        found = None if watching or self.arenas is not self.state.arenas else self._found(nodes, grads)
        if found is None:
            return self._again(wanted, grads)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self.call = None  # the caller may keep the loss alive
        return found

    def _found(self, nodes: Sequence[Any], grads: Sequence[Tensor | None]) -> list[Any] | None:
        """The gradients of the roots by the program; None if they must be recomputed."""
        if self.spent:
            return None
        used = tuple(g is not None for g in grads)
        if used != self.program.used:
            self.entry.other_outputs(used)
            return None
        try:
            for buffer, grad in zip(self.program.output_grads, (g for g in grads if g is not None), strict=True):
                buffer.copy_(grad)
            return self._replayed(nodes)
        except Exception as error:
            self.entry.refuse(failure(error))
            return None

    def _unchanged(self) -> None:
        """Check, as autograd does for saved tensors, that parameters and inputs that the backward reads are unchanged.

        Raises:
            RuntimeError: they were changed, or the graph was freed.
        """
        if self.call is None:
            raise RuntimeError(SPENT)
        parameters, positions = self.program.needs
        same = self._read == [p._version for p in parameters]
        if same and positions:
            now = versions(self.call.leaves)
            same = all(now[i] == self._given[i] for i in positions)
        if not same:
            raise RuntimeError(MODIFIED)

    def _replayed(self, nodes: Sequence[Any]) -> list[Any]:
        program = self.program
        count = len(program.learning)
        if not count:
            return _passed(program, program.backward())
        if _accumulated(nodes[:count], program.learning):
            upstream = self._deliver()
            found: list[Any] = [None] * count
        else:
            gradients, upstream = gradient_copies(self.state, program.targets, program.backward)
            by = {id(t.parameter): g for t, g in zip(program.targets, gradients, strict=True)}
            found = [by.get(id(p)) for p in program.learning]
        return found + _passed(program, upstream)

    def _deliver(self) -> list[Tensor]:
        """Run the backward and deliver its gradients to `.grad`; returns those of the inputs."""
        state, targets, backward = self.state, self.program.targets, self.program.backward
        if any(t.parameter.grad is not None for t in targets):
            return delivered(state, targets, backward)
        upstream = written(targets, backward)
        # At the end: other parts of the graph that depend on the parameters may give them a gradient meanwhile.
        torch.autograd.Variable._execution_engine.queue_callback(partial(assign_grads, state, targets))
        return upstream

    def _again(self, wanted: Sequence[bool], grads: Sequence[Tensor | None]) -> list[Any]:
        """Recompute the forward from its initial state, and differentiate it eagerly."""
        state, call = self.state, self.call
        assert call is not None  # otherwise the graph was freed
        inputs = call.inputs
        if versions(inputs.leaves) != self._given or self.guards is None or not self.guards.hold():
            raise FusionError(
                "the backward has to compute the forward again, but since then an input or the model has changed",
                where="array(x)",
                remedy="change them after the backward, or set array.capture = False",
            )
        create = torch.is_grad_enabled()
        if not create:
            own = [
                v.detach().requires_grad_() if isinstance(v, Tensor) and v.requires_grad else v for v in inputs.leaves
            ]
            inputs = replace(inputs, leaves=tuple(own))
        now = state.snapshot()
        if self.start is not None:
            self.start.put_back()
        try:
            with torch.enable_grad(), autocast.activated(self._autocast):
                result = call.eagerly(inputs)
        finally:
            now()
        tensors = [v for v in flatten(result)[0] if isinstance(v, Tensor)]
        outputs = [t for t, d in zip(tensors, self.program.differentiable, strict=True) if d]
        pairs = [(t, g) for t, g in zip(outputs, grads, strict=True) if g is not None]
        roots = [*self.program.learning, *inputs.grad_leaves()]
        found = iter(
            vector_jacobian(
                [t for t, _ in pairs],
                [root for root, want in zip(roots, wanted, strict=True) if want],
                [g for _, g in pairs],
                create,
                create,
            )
        )
        return [next(found) if want else None for want in wanted]


def _accumulated(nodes: Sequence[Any], learning: Sequence[nn.Parameter]) -> bool:
    """True if all gradients of parameters go to `.grad`, and no hook observes them."""
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in learning):
        return False
    try:
        return all(torch._C._will_engine_execute_node(node) for node, _ in nodes)
    except RuntimeError:  # within `torch.autograd.grad`, which returns the gradients
        return False


def _passed(program: SplitProgram, upstream: Sequence[Tensor]) -> list[Any]:
    """The gradients of the inputs, each at its position."""
    left = iter(upstream)
    return [next(left) if passes else None for passes in program.passes]


class Replayed(torch.autograd.Function):
    """The outputs of a replayed forward, as functions of parameters and inputs."""

    @staticmethod
    def forward(ctx: Any, ticket: SavedContext, outputs: tuple[Tensor, ...], *roots: Tensor) -> tuple[Tensor, ...]:
        ctx.ticket = ticket
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.ticket.gradients(ctx.next_functions, ctx.needs_input_grad[2:], grads))


_apply: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, Replayed).apply
"""`Replayed.apply` without support for transforms of `torch.func`, within which nothing is replayed."""
