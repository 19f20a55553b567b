"""Which calls of an array are compared with the plain module: the first ones of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.caller_backward import comparable_later
from hfta_nb.engine.eager.member_outcome import Computation
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.verification import Verification
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.errors import out_of_memory

_MOST_SHAPES = 8
"""This many input shapes per kind of call are verified: as many as are replayed."""

_MOST_PATHS = 16
"""This many paths per kind of call are verified; a model may take another one in each call."""

_MOST_AWAITED = 2
"""This many calls of a kind wait for the caller's backward; gradients of the next one are compared at once."""


def kinds_of(state: ArrayState, what: str, inputs: Inputs) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The kind of a call without and with the shapes of its inputs."""
    # A string among the inputs selects a code path (a phase of training).
    key = (what, state.skeleton.training, torch.is_grad_enabled(), *(v for v in inputs.leaves if isinstance(v, str)))
    return key, (*key, *((v.dtype, v.shape) for v in inputs.leaves if isinstance(v, Tensor)))


def count(state: ArrayState, kind: tuple[Any, ...], times: int) -> None:
    """Note that this kind of call was compared; after a change of state the next one may take another path."""
    state.verified[kind] = state.verified.get(kind, 0) + times


def verification_of(
    state: ArrayState,
    restore: Callable[[], None],
    key: tuple[Any, ...],
    kind: tuple[Any, ...],
    inputs: Inputs,
    computation: Computation,
    new_path: bool,
    later: bool,
) -> Verification | None:
    """The comparison of this call with the plain module; None if it is not to be verified."""
    if must_verify(state, new_path or key not in state.proven):
        return Verification(state, restore, inputs, computation)
    if not verifiable(state):
        return None
    known = state.verified.get(kind, 0) > 1 or _enough_shapes(state, key, kind)
    if state.settings.verify == "first" and known and not new_path:
        return None
    try:
        return Verification(state, restore, inputs, computation, later and state.settings.verify == "first")
    except Exception as error:
        if out_of_memory(error):
            return None
        raise


def may_wait(state: ArrayState, kind: tuple[Any, ...], inputs: Inputs) -> bool:
    """True if gradients of this call, whose backward is the caller's, may be compared there."""
    return state.awaited.get(kind, 0) < _MOST_AWAITED and comparable_later(state, inputs)


def wait(state: ArrayState, kind: tuple[Any, ...]) -> None:
    """Note that a call waits for the caller's backward."""
    state.awaited[kind] = state.awaited.get(kind, 0) + 1


def verifiable(state: ArrayState) -> bool:
    """True if calls may be verified; a plain module never draws the fast random numbers."""
    settings, device = state.settings, state.generators.device
    return not (settings.verify == "never" or settings.fast_rng or device.type == "meta" or capturing(device))


def must_verify(state: ArrayState, new: bool) -> bool:
    """True if a new kind of call has to be verified whatever the settings: rules for padding can't know what a model
    computes from its sizes."""
    device = state.generators.device
    return new and state.settings.padded and not (device.type == "meta" or capturing(device))


def is_new(state: ArrayState, key: tuple[Any, ...], paths: set[int]) -> bool:
    """True if some members took a path that was not compared yet."""
    known = state.paths.get(key, set())
    return not paths <= known and len(known) < _MOST_PATHS


def _enough_shapes(state: ArrayState, key: tuple[Any, ...], kind: tuple[Any, ...]) -> bool:
    """True if enough input shapes of this kind of call were verified, and this shape was not."""
    return kind not in state.verified and sum(k[: len(key)] == key for k in state.verified) >= _MOST_SHAPES


def check(verification: Verification, result: Any) -> bool:
    """See `Verification.check`; False if there is too little memory to compare."""
    try:
        return verification.check(result)
    except Exception as error:
        if out_of_memory(error) and not verification.state.settings.padded:
            verification.leave()
            return False
        raise
