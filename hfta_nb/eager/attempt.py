"""Running an array's call; where that can't be done at once, finding the way in which it can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb.eager.engine import Block, Call, Inputs, concatenate
from hfta_nb.eager.fallback import Settings, member_error
from hfta_nb.eager.gradients import Gradients
from hfta_nb.eager.handlers import install
from hfta_nb.eager.hints import warn_of_shared
from hfta_nb.eager.state import ArrayState
from hfta_nb.errors import HftaError, out_of_memory
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.rules import SharedWrite

Found = tuple[Any, Mapping[str, Mapping[int, Tensor]]]
"""Results ``[k, ...]`` of the members of some blocks; and by parameter and member, the gradient."""

Probe = Callable[[Inputs, Sequence[Block]], Found]
"""Computes for some blocks what a call would, and keeps nothing."""


class Helpers(NamedTuple):
    """What is done before the first run of a call, where it is needed.

    Attributes:
        materialise: gives members with lazy modules their shapes.
        prove: sees that members of different architecture come to what their own plain modules come to; given what
            computes for some blocks and keeps nothing.
    """

    materialise: Callable[[Inputs], None]
    prove: Callable[[ArrayState, Callable[[Sequence[Block]], Found]], None]


def attempt(
    state: ArrayState, helpers: Helpers, what: str, inputs: Inputs, run: Callable[[Inputs], Any], probe: Probe
) -> Any:
    """Run; where `vmap` can't follow, change what helps and run again.

    Raises:
        MemberError: a member's own code failed, as it would alone. Buffers, random streams and the way the array runs
            are then as before.
    """
    if state.pending:
        helpers.materialise(inputs)
    warn_of_shared(state, inputs)
    before = state.settings.copy()
    # A word among the inputs says which way a call takes (a phase of training).
    key = (what, state.skeleton.training, torch.is_grad_enabled(), *(v for v in inputs.leaves if isinstance(v, str)))
    while True:
        restore = state.snapshot()
        state.engine.recording = key not in state.proven
        try:
            if state.engine.recording and state.settings.unproven:
                watched = replace(inputs.watched(), copied=state.settings.private)
                helpers.prove(state, lambda blocks: probe(watched, blocks))  # noqa: B023
            result = _guarded(state, inputs, run)
        except BaseException as error:
            if capturing(state.generators.device):
                raise  # another way to run would be captured after what has failed
            restore()
            if not isinstance(error, Exception) or isinstance(error, HftaError) or out_of_memory(error):
                _resettle(state, before)
                raise
            if state.settings.block_size == 1 and not (isinstance(error, SharedWrite) and not state.settings.private):
                _resettle(state, before)
                member = state.engine.current
                raise member_error(error, member, _module_of(state, member)) from error
            state.settings.react(error, state.skeleton)
            install(state)
        else:
            state.proven.add(key)
            return result
        finally:
            state.engine.recording = False


def result_probe(state: ArrayState, call: Call) -> Probe:
    """For a call that gives results only."""

    def probe(inputs: Inputs, blocks: Sequence[Block]) -> Found:
        with torch.no_grad():
            return concatenate([state.engine.run(block, call, inputs) for block in blocks]), {}

    return probe


def gradient_probe(state: ArrayState, call: Call, scale: Tensor | None, only: Collection[str] | None = None) -> Probe:
    """For a call that differentiates."""

    def probe(inputs: Inputs, blocks: Sequence[Block]) -> Found:
        gradients = Gradients(state, inputs, keep=False, watch=True, scale=scale, only=only)
        return gradients.of(call, blocks), gradients.found

    return probe


def _guarded(state: ArrayState, inputs: Inputs, run: Callable[[Inputs], Any]) -> Any:
    """Run, with copies of the inputs where the model writes into them."""
    if state.settings.private:
        return run(replace(inputs, copied=True))
    if not state.engine.recording:
        return run(inputs)
    # The first time with copies, on which a model's writing shows without harm.
    watched = inputs.watched()
    failure: Exception | None = None
    result = None
    try:
        result = run(watched)
    except Exception as error:
        failure = error
    pairs = zip(watched.leaves, inputs.leaves, strict=True)
    if any(own is not given and own._version for own, given in pairs):
        raise SharedWrite("the model writes into its input") from failure
    if failure is not None:
        raise failure
    return result


def _resettle(state: ArrayState, settings: Settings) -> None:
    state.settings = settings
    install(state)


def _module_of(state: ArrayState, member: int) -> nn.Module:
    """The plain module that a member runs alone through."""
    across = state.engine.across
    return state.skeleton if across is None else across.template(member)
