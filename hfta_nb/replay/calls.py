"""The calls of an array: replayed where that is known to be the same, recorded where it may be, else run.

The first calls of a kind run member by member through `vmap`; the next two are recorded; then they are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from hfta_nb.eager.attempt import Helpers, attempt, gradient_probe, result_probe
from hfta_nb.eager.blocks import graph_blocks, leaf_blocks
from hfta_nb.eager.engine import Block, Call, Inputs, concatenate, positional
from hfta_nb.eager.gradients import Gradients, loss_call
from hfta_nb.eager.state import ArrayState
from hfta_nb.eager.verifying import Computation
from hfta_nb.replay.forward import CapturedForwards
from hfta_nb.replay.results import CapturedResults
from hfta_nb.replay.steps import Asked, CapturedSteps


class Calls:
    """What runs the calls of an array.

    Args:
        state: of the array.
        helpers: what is done before the first run of a call.

    Attributes:
        steps: `FusedArray.backward`, recorded and replayed.
        forwards: ``array(x)`` with gradients.
        results: `FusedArray.evaluate`, and ``array(x)`` without gradients.
    """

    def __init__(self, state: ArrayState, helpers: Helpers) -> None:
        self.state, self.helpers = state, helpers
        self.steps, self.forwards, self.results = CapturedSteps(state), CapturedForwards(state), CapturedResults(state)

    def clear(self) -> None:
        """Forget what was recorded."""
        for captured in (self.steps, self.forwards, self.results):
            captured.clear()

    def again(self, tensors: tuple[Tensor, ...]) -> Any:
        """The output for positional inputs, where that is replayed and like the last that was; else None."""
        forwards = self.forwards
        if forwards.last is None:
            return None
        return forwards.again(tensors, (False,) * len(tensors), positional, partial(over, self.state, _called))

    def forward(self, given: Any, inputs: Inputs, call: Call, plain: Sequence[Tensor] = ()) -> Any:
        """Every member's output, as part of the autograd graph where a gradient may be asked for.

        Args:
            given: the arguments.
            inputs: the same, taken apart.
            call: what to compute for a member.
            plain: the arguments, where they are nothing but tensors; a call like this one may come by `again`.
        """
        computed = partial(over, self.state, call)

        def run(inputs: Inputs) -> Any:
            return computed(inputs, graph_blocks(self.state))

        forwards = self.forwards
        if not forwards.learns(inputs):
            return self._result("forward", None, given, inputs, run, call)
        seen = forwards.find(given)
        replayed = None if seen is None else forwards.replay(seen, inputs, computed)
        if replayed is not None:
            if seen is not None and plain:
                forwards.remember(seen, plain)
            return replayed[0]
        recorded = None if seen is None else forwards.recorder(seen, computed)
        return self._attempt("forward", inputs, recorded or run, call)

    def evaluate(self, function: Callable[..., Any], given: Any, inputs: Inputs, call: Call) -> Any:
        """Every member's result of a function of its output, without gradients."""

        def run(inputs: Inputs) -> Any:
            return concatenate([self.state.engine.run(block, call, inputs) for block in leaf_blocks(self.state)])

        return self._result("evaluate", function, given, inputs, run, call)

    def _result(
        self, what: str, function: Any, given: Any, inputs: Inputs, run: Callable[[Inputs], Any], call: Call
    ) -> Any:
        results = self.results
        seen = results.find((what, function), given)
        replayed = None if seen is None else results.replay(seen, inputs)
        if replayed is not None:
            return replayed[0]
        recorded = None if seen is None else results.recorder(seen, run)
        return self._attempt(what, inputs, recorded or run, call)

    def _attempt(self, what: str, inputs: Inputs, run: Callable[[Inputs], Any], call: Call) -> Any:
        probe = result_probe(self.state, call)
        return attempt(self.state, self.helpers, what, inputs, run, probe, Computation(call))

    def backward(self, asked: Asked) -> tuple[Tensor, Any]:
        """The losses and what comes with them, gradients delivered."""
        again = self.steps.again(asked)
        if again is not None:
            return again
        loss_fn, given, has_aux, scale, only = asked
        seen = self.steps.find(asked)
        replayed = None if seen is None else self.steps.replay(seen, asked)
        if replayed is not None:
            return replayed
        state = self.state
        inputs = Inputs.of(given, len(state))
        call = loss_call(loss_fn, inputs, has_aux)

        def run(inputs: Inputs) -> Any:
            gradients = Gradients(state, inputs, scale=scale, only=only)
            return gradients, gradients.of(call, leaf_blocks(state))

        recorded = None if seen is None else self.steps.recorder(seen, asked, call)
        probe = gradient_probe(state, call, scale, only)
        computation = Computation(call, True, scale, only)
        gradients, (losses, aux) = attempt(state, self.helpers, "backward", inputs, recorded or run, probe, computation)
        gradients.deliver()
        return losses, aux


def over(state: ArrayState, call: Call, inputs: Inputs, blocks: Sequence[Block]) -> Any:
    """Every member's output as ever."""
    return concatenate([state.engine.run(block, call, inputs) for block in blocks])


def _called(module: nn.Module, leaves: list[Any]) -> Any:
    """A module's output, from positional inputs."""
    return module(*leaves)
