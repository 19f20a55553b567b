"""Runs the calls of an array: replayed if possible, otherwise eagerly, with recording where it may help.

The first call of a kind runs through `vmap`; the next two are recorded; later ones are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.block_results import concatenate
from hfta_nb.engine.eager.blocks import graph_blocks, leaf_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.engine import Block, Call
from hfta_nb.engine.eager.foreign_leaves import Owned, check_leaves
from hfta_nb.engine.eager.gradients import call_module, loss_call
from hfta_nb.engine.eager.member_outcome import Computation, differentiable
from hfta_nb.engine.eager.recomputation import in_backward, refuse_checkpoint, same_streams
from hfta_nb.engine.eager.retry import RetryHelpers, run_with_retry
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.replay.evaluation import CapturedResults
from hfta_nb.engine.replay.forward import CapturedForwards
from hfta_nb.engine.replay.layouts import LAST
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.steps import BackwardArgs, CapturedSteps


class Calls:
    """Runs the calls of an array.

    Args:
        state: of the array.
        helpers: functions of the array for the first run of a call.

    Attributes:
        steps: `FusedArray.backward`, recorded and replayed.
        forwards: ``array(x)`` with gradients.
        results: `FusedArray.evaluate`, and ``array(x)`` without gradients.
    """

    def __init__(self, state: ArrayState, helpers: RetryHelpers) -> None:
        self.state, self.helpers = state, helpers
        self._eagerly = partial(run_with_retry, state, helpers)  # through `vmap`, or member by member where that fails
        self.steps, self.forwards = CapturedSteps(state), CapturedForwards(state)
        self.results = CapturedResults(state, self._channels_last)

    @property
    def caches(self) -> tuple[ProgramCache[Any], ...]:
        """The caches, one for each kind of calls."""
        return self.steps.cache, self.forwards.cache, self.results.cache

    def _channels_last(self) -> bool:
        """True if training steps run with channels-last images."""
        entries = [*self.steps.cache, *self.forwards.cache]
        return any(entry.layout is not None and entry.layout.chosen == LAST for entry in entries)

    def learn(self, other: Calls) -> None:
        """Know the calls that another array replays, of which this one has some of the members."""
        for cache, known in zip(self.caches, other.caches, strict=True):
            cache.learn(known)

    def clear(self) -> None:
        """Discard all recordings."""
        for cache in self.caches:
            cache.clear()

    # The kinds of calls: each is replayed, or falls back to `_eagerly`, which may record it.

    def backward(self, args: BackwardArgs) -> tuple[Tensor, Any]:
        """The losses and auxiliary results, with gradients delivered."""
        again = self.steps.again(args)
        if again is not None:
            return again
        entry = self.steps.find(args)
        replayed = self.steps.replay(entry, args)
        if replayed is not None:
            return replayed
        loss_fn, given, has_aux, scale, only = args
        inputs = Inputs.of(given, len(self.state))
        call = loss_call(self.state, loss_fn, inputs, has_aux)
        computation = Computation(call, True, scale, only, (loss_fn,))
        run = self.steps.recorder(entry, args, call)
        gradients, (losses, aux) = self._eagerly("backward", inputs, run, computation)
        gradients.deliver()
        self.state.met.add(loss_fn)
        return losses, aux

    def again(self, tensors: tuple[Tensor, ...]) -> Any:
        """Fast path of `forward`: the output for positional inputs, if the call's signature equals the last one's; else
        None."""
        if self.state.missing_grads:
            return None
        return self.forwards.again(Inputs.positional(tensors), partial(over, self.state, _called))

    def forward(self, given: Any, inputs: Inputs, call: Call, plain: tuple[Tensor, ...] = ()) -> Any:
        """Every member's output, as part of the autograd graph if gradients may be needed.

        Args:
            given: the arguments.
            inputs: the same, flattened.
            call: what to compute for a member.
            plain: the arguments, if they are all tensors; later calls like this one may use `again`.
        """
        refuse_checkpoint()
        self.state.engine.usage.clear()
        with same_streams(self.state.generators) if in_backward() else nullcontext():
            found = self._output(given, inputs, call, plain)
        if torch.is_grad_enabled():
            self.state.note_unused()
        return found

    def _output(self, given: Any, inputs: Inputs, call: Call, plain: tuple[Tensor, ...]) -> Any:
        forwards, computed = self.forwards, partial(over, self.state, call)
        if not forwards.learns(inputs):
            return self._result(("forward", None), given, inputs, self._in_graph_blocks(computed), call)
        entry = forwards.find(given)
        replayed = forwards.replay(entry, inputs, computed)
        if replayed is not None:
            if entry is not None and plain:
                forwards.remember(entry, plain)
            return replayed[0]
        run = forwards.recorder(entry, computed)
        eager = self._in_graph_blocks(computed)
        return self._eagerly("forward", inputs, run, Computation(call, functions=self.state.called), eager)

    def evaluate(self, function: Callable[..., Any], given: Any, inputs: Inputs, call: Call) -> Any:
        """Every member's result of a function of its output, without gradients."""

        def run(inputs: Inputs) -> Any:
            return over(self.state, call, inputs, leaf_blocks(self.state))

        found = self._result(("evaluate", function), given, inputs, run, call)
        self.state.met.add(function)
        return found

    def _result(
        self, what: tuple[str, Any], given: Any, inputs: Inputs, run: Callable[[Inputs], Any], call: Call
    ) -> Any:
        """The result of a call without gradients."""
        entry = self.results.find(what, given)
        replayed = self.results.replay(entry, inputs)
        if replayed is not None:
            return replayed[0]
        run = self.results.recorder(entry, run)
        functions = self.state.called if what[1] is None else (what[1],)
        return self._eagerly(what[0], inputs, run, Computation(call, functions=functions))

    def _in_graph_blocks(self, computed: Callable[..., Any]) -> Callable[[Inputs], Any]:
        return lambda inputs: computed(inputs, graph_blocks(self.state))


def over(state: ArrayState, call: Call, inputs: Inputs, blocks: Sequence[Block]) -> Any:
    """Every member's output, computed eagerly.

    Raises:
        FusionError: it depends on a tensor that requires a gradient and belongs to no array.
    """
    own = Owned([*state.tensors.parameters(), *(v for v in inputs.leaves if isinstance(v, Tensor))])
    result = concatenate([state.engine.run(block, call, inputs) for block in blocks])
    check_leaves(differentiable(result), own, (state.skeleton, *state.functions.called))
    return result


def _called(module: nn.Module, leaves: list[Any]) -> Any:
    """A module's output for positional inputs."""
    return call_module(module, tuple(leaves))
