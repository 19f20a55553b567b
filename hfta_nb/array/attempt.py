"""Running an array's call; where that can't be done at once, finding the way in which it can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hfta_nb.array import laying
from hfta_nb.array.across.proof import Found, prove
from hfta_nb.array.answers import level_outside, warn_of_shared
from hfta_nb.array.cuda_graphs import capturing
from hfta_nb.array.engine import Block, Call, Inputs, concatenate
from hfta_nb.array.fallback import Settings, member_error, snapshot
from hfta_nb.array.gradients import Gradients
from hfta_nb.array.lazy import materialise
from hfta_nb.array.rules import SharedWrite
from hfta_nb.array.verifying import Computation, Mismatch, Verification
from hfta_nb.errors import ArrayWarning, FusionError, HftaError, out_of_memory

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray

Probe = Callable[[Inputs, Sequence[Block]], Found]
"""Computes for some blocks what a call would, and keeps nothing."""


def attempt(
    array: FusedArray,
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
    if array._pending:
        materialise(array, inputs)
    warn_of_shared(array, inputs)
    before = array.settings.copy()
    # A word among the inputs says which way a call takes (a phase of training).
    key = (what, array.training, torch.is_grad_enabled(), *(v for v in inputs.leaves if isinstance(v, str)))
    kind = (*key, *((v.dtype, v.ndim) for v in inputs.leaves if isinstance(v, Tensor)))
    found: Mismatch | None = None
    while True:
        restore = snapshot(array)
        verification = _verification(array, kind, inputs, computation)
        array.engine.recording = key not in array._proven or verification is not None
        result = None
        try:
            if array.engine.recording and array.settings.unproven:
                watched = replace(inputs.watched(), copied=array.settings.private)
                prove(array, lambda blocks: probe(watched, blocks))  # noqa: B023
            result = _guarded(array, inputs, run)
            stateful = verification is not None and _verified(verification, result)
        except BaseException as error:
            array.engine.observed = None
            if capturing(array.generators.device):
                raise  # another way to run would be captured after what has failed
            module = array.engine.own_module(array.engine.current)  # which the error may have come out of
            restore()
            if isinstance(error, Mismatch):
                found = error
                if computation.backward and result is not None:
                    result[0].undo()
                if array.block_size == 1:
                    _resettle(array, before)
                    remedy = "hfta.fuse(..., verify='never') does without this comparison"
                    raise FusionError(str(error), where=type(array._skeleton).__name__, remedy=remedy) from error
            if not isinstance(error, Exception) or isinstance(error, HftaError) or out_of_memory(error):
                _resettle(array, before)
                raise
            if array.block_size == 1 and not (isinstance(error, SharedWrite) and not array.settings.private):
                _resettle(array, before)
                member = array.engine.current
                raise member_error(error, member, module) from error
            array.settings.react(error, array._skeleton)
            array._install()
        else:
            array._proven.add(key)
            if verification is not None:
                # State that has changed may let the next call do something else.
                array._verified[kind] = array._verified.get(kind, 0) + (1 if stateful else 2)
            if found is not None:
                warnings.warn(f"{found}; see explain()", ArrayWarning, stacklevel=level_outside())
            if array.engine.outgrown:
                laying.regrow(array)
            return result
        finally:
            array.engine.recording = False


def _verification(
    array: FusedArray, kind: tuple[Any, ...], inputs: Inputs, computation: Computation
) -> Verification | None:
    """What compares this call with the plain module alone; None where it is not to be."""
    settings = array.settings
    # Members that run padded are proven otherwise, and fast random numbers are none that a plain module draws.
    if settings.verify == "never" or settings.unlike or settings.fast_rng or capturing(array.generators.device):
        return None
    if settings.verify == "first" and array._verified.get(kind, 0) > 1:
        return None
    try:
        return Verification(array, inputs, computation)
    except Exception as error:
        if out_of_memory(error):
            return None
        raise


def _verified(verification: Verification, result: Any) -> bool:
    """See `Verification.check`; a comparison for which there is no memory is left out."""
    try:
        return verification.check(result)
    except Exception as error:
        if out_of_memory(error):
            return False
        raise


def result_probe(array: FusedArray, call: Call) -> Probe:
    """For a call that gives results only."""

    def probe(inputs: Inputs, blocks: Sequence[Block]) -> Found:
        with torch.no_grad():
            return concatenate([array.engine.run(block, call, inputs) for block in blocks]), {}

    return probe


def gradient_probe(array: FusedArray, call: Call, scale: Tensor | None, only: Collection[str] | None = None) -> Probe:
    """For a call that differentiates."""

    def probe(inputs: Inputs, blocks: Sequence[Block]) -> Found:
        gradients = Gradients(array, inputs, keep=False, watch=True, scale=scale, only=only)
        return gradients.of(call, blocks), gradients.found

    return probe


def _guarded(array: FusedArray, inputs: Inputs, run: Callable[[Inputs], Any]) -> Any:
    """Run, with copies of the inputs where the model writes into them."""
    if array.settings.private:
        return run(replace(inputs, copied=True))
    if not array.engine.recording:
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


def _resettle(array: FusedArray, settings: Settings) -> None:
    array.settings = settings
    array._install()
