"""`array(x)` and `array.evaluate`: replayed where that is known to be the same, recorded where it may be, else run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hfta_nb.array.attempt import attempt, result_probe
from hfta_nb.array.capture.deferred import settled
from hfta_nb.array.engine import Block, Call, Inputs, concatenate, positional
from hfta_nb.array.verifying import Computation

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


def over(array: FusedArray, call: Call, inputs: Inputs, blocks: Sequence[Block]) -> Any:
    """Every member's output as ever."""
    return concatenate([array.engine.run(block, call, inputs) for block in blocks])


def again(array: FusedArray, tensors: tuple[Tensor, ...]) -> Any:
    """The output for positional inputs, where that is replayed and like the last that was; else None."""
    forwards = array._forwards
    if forwards.postponed is not None:
        forwards.flush()
    if forwards.last is None:
        return None
    run = partial(over, array, _called)
    return forwards.again(tensors, (False,) * len(tensors), positional, run, follow=True)


def _called(module: nn.Module, leaves: list[Any]) -> Any:
    """A module's output, from positional inputs."""
    return module(*leaves)


def forward(
    array: FusedArray, given: Any, inputs: Inputs, call: Call, plain: Sequence[Tensor] = (), follow: bool = False
) -> Any:
    """Every member's output, as part of the autograd graph where a gradient may be asked for.

    Args:
        array: whose.
        given: the arguments.
        inputs: the same, taken apart.
        call: what to compute for a member.
        plain: the arguments, where they are nothing but tensors; a call like this one may come by `again`.
        follow: it may be put off.
    """
    array.flush()
    settled(inputs.leaves)
    computed = partial(over, array, call)

    def run(inputs: Inputs) -> Any:
        return computed(inputs, array._blocks.graph())

    if not array._forwards.learns(inputs):
        return _result(array, "forward", None, given, inputs, run, call)
    seen = array._forwards.find(given)
    replayed = None if seen is None else array._forwards.output(seen, inputs, computed, follow)
    if replayed is not None:
        if seen is not None and plain:
            array._forwards.remember(seen, plain)
        return replayed[0]
    recorded = None if seen is None else array._forwards.recorder(seen, computed)
    return attempt(array, "forward", inputs, recorded or run, result_probe(array, call), Computation(call))


def evaluate(array: FusedArray, function: Callable[..., Any], given: Any, inputs: Inputs, call: Call) -> Any:
    """Every member's result of a function of its output, without gradients."""
    array.flush()
    settled(inputs.leaves)

    def run(inputs: Inputs) -> Any:
        return concatenate([array.engine.run(block, call, inputs) for block in array._blocks.leaves()])

    return _result(array, "evaluate", function, given, inputs, run, call)


def _result(
    array: FusedArray, what: str, function: Any, given: Any, inputs: Inputs, run: Callable[[Inputs], Any], call: Call
) -> Any:
    seen = array._results.find((what, function), given)
    replayed = None if seen is None else array._results.replay(seen, inputs)
    if replayed is not None:
        return replayed[0]
    recorded = None if seen is None else array._results.recorder(seen, run)
    return attempt(array, what, inputs, recorded or run, result_probe(array, call), Computation(call))
