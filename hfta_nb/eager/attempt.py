"""Running an array's call; where that can't be done at once, finding the way in which it can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb.eager.engine import Block, Call, Inputs, concatenate
from hfta_nb.eager.fallback import Settings, member_error
from hfta_nb.eager.gradients import Gradients
from hfta_nb.eager.handlers import install
from hfta_nb.eager.hints import level_outside, warn_of_shared
from hfta_nb.eager.parting import Mismatch
from hfta_nb.eager.state import ArrayState
from hfta_nb.eager.verifying import Computation, Verification
from hfta_nb.errors import ArrayWarning, FusionError, HftaError, out_of_memory
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.rules import SharedWrite

Found = tuple[Any, Mapping[str, Mapping[int, Tensor]]]
"""Results ``[k, ...]`` of the members of some blocks; and by parameter and member, the gradient."""

Probe = Callable[[Inputs, Sequence[Block]], Found]
"""Computes for some blocks what a call would, and keeps nothing."""


_MOST_SHAPES = 8
"""So many shapes of the inputs of one form are compared with the plain module: as many as are replayed."""


class Helpers(NamedTuple):
    """What is done before the first run of a call, where it is needed.

    Attributes:
        materialise: gives members with lazy modules their shapes.
        member: takes a member out as the plain module.
        regrow: takes up buffers that have another shape now.
        prove: sees that members of different architecture come to what their own plain modules come to; given what
            computes for some blocks and keeps nothing.
    """

    materialise: Callable[[Inputs], None]
    member: Callable[[int], nn.Module]
    regrow: Callable[[], None]
    prove: Callable[[ArrayState, Callable[[Sequence[Block]], Found]], None]


def attempt(
    state: ArrayState,
    helpers: Helpers,
    what: str,
    inputs: Inputs,
    run: Callable[[Inputs], Any],
    probe: Probe,
    computation: Computation,
) -> Any:
    """Run; where `vmap` can't follow, or a member comes to something else than alone, change what helps and run again.

    Raises:
        MemberError: a member's own code failed, as it would alone. Buffers, random streams and the way the array runs
            are then as before.
    """
    try:
        return _attempted(state, helpers, what, inputs, run, probe, computation)
    finally:
        state.engine.outside.end()


def _attempted(
    state: ArrayState,
    helpers: Helpers,
    what: str,
    inputs: Inputs,
    run: Callable[[Inputs], Any],
    probe: Probe,
    computation: Computation,
) -> Any:
    if state.pending:
        helpers.materialise(inputs)
    warn_of_shared(state, inputs)
    before = state.settings.copy()
    # A word among the inputs says which way a call takes (a phase of training).
    key = (what, state.skeleton.training, torch.is_grad_enabled(), *(v for v in inputs.leaves if isinstance(v, str)))
    kind = (*key, *((v.dtype, v.shape) for v in inputs.leaves if isinstance(v, Tensor)))
    found: Mismatch | None = None
    while True:
        restore = state.snapshot()
        state.engine.outside.rewind()
        verification = _verification(state, restore, key, kind, inputs, computation)
        state.engine.recording = key not in state.proven
        state.engine.watching = state.engine.recording or verification is not None
        state.engine.outside.begin(state.engine.watching)
        result = None
        try:
            if state.engine.recording and state.settings.unproven:
                watched = replace(inputs.watched(), copied=state.settings.private)
                helpers.prove(state, lambda blocks: probe(watched, blocks))  # noqa: B023
            result = _guarded(state, inputs, run)
            stateful = verification is not None and _verified(verification, result)
        except BaseException as error:
            if verification is not None:
                verification.over()
            if capturing(state.generators.device):
                raise  # another way to run would be captured after what has failed
            module = state.engine.own_module(state.engine.current)  # which the error may have come out of
            restore()
            if isinstance(error, Mismatch) and verification is not None:
                found = error
                _undone(state, computation, result, before, error)
            if not isinstance(error, Exception) or isinstance(error, HftaError) or out_of_memory(error):
                _resettle(state, before)
                raise
            if state.settings.block_size == 1 and not (isinstance(error, SharedWrite) and not state.settings.private):
                _resettle(state, before)
                member = state.engine.current
                raise member_error(error, member, module) from error
            _react(state, error, error is found)
        else:
            state.proven.add(key)
            if verification is not None:
                # State that has changed may let the next call do something else.
                state.verified[kind] = state.verified.get(kind, 0) + (1 if stateful else 2)
            _told(state, helpers, found)
            return result
        finally:
            state.engine.recording = state.engine.watching = False


def _react(state: ArrayState, error: Exception, differs: bool) -> None:
    """Let the array run in another way, as this error asks; note where a member differs from its plain module."""
    across = state.engine.across
    if across is not None and across.roomy:  # which may be all that is wrong
        across.set_roomy(None)
        return
    apart = set(state.settings.paths)
    state.settings.react(error, state.skeleton)
    if differs:  # the whole model where it is no submodule
        path = next((path for path in state.settings.paths if path not in apart), "")
        state.settings.differences[path] = str(error)
    install(state)


def _told(state: ArrayState, helpers: Helpers, found: Mismatch | None) -> None:
    """Warn of what was found, and give tensors that have grown their room."""
    if found is not None:
        warnings.warn(f"{found}; see explain()", ArrayWarning, stacklevel=level_outside())
    if state.engine.outgrown:
        helpers.regrow()


def _undone(state: ArrayState, computation: Computation, result: Any, before: Settings, error: Mismatch) -> None:
    """Take back what a call has added to gradients in which a member came to something else than alone.

    Raises:
        FusionError: members run one by one already, so that nothing else can be tried.
    """
    if computation.backward and result is not None:
        result[0].undo()
    if state.settings.block_size == 1:
        _resettle(state, before)
        remedy = "hfta.fuse(..., verify='never') or hfta.Study(..., verify='never') does without this comparison"
        raise FusionError(str(error), where=type(state.skeleton).__name__, remedy=remedy) from error


def _verification(
    state: ArrayState,
    restore: Callable[[], None],
    key: tuple[Any, ...],
    kind: tuple[Any, ...],
    inputs: Inputs,
    computation: Computation,
) -> Verification | None:
    """What compares this call with the plain module alone; None where it is not to be."""
    settings = state.settings
    # Members that run padded are proven otherwise, and fast random numbers are none that a plain module draws.
    if settings.verify == "never" or settings.unlike or settings.fast_rng or capturing(state.generators.device):
        return None
    if state.generators.device.type == "meta":
        return None
    if settings.verify == "first" and (state.verified.get(kind, 0) > 1 or _known(state, key, kind)):
        return None
    try:
        return Verification(state, restore, inputs, computation)
    except Exception as error:
        if out_of_memory(error):
            return None
        raise


def _known(state: ArrayState, key: tuple[Any, ...], kind: tuple[Any, ...]) -> bool:
    """Whether calls of this form were compared for many shapes of inputs, and this is another one."""
    return kind not in state.verified and sum(k[: len(key)] == key for k in state.verified) >= _MOST_SHAPES


def _verified(verification: Verification, result: Any) -> bool:
    """See `Verification.check`; a comparison for which there is no memory is left out."""
    try:
        return verification.check(result)
    except Exception as error:
        if out_of_memory(error):
            return False
        raise


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
