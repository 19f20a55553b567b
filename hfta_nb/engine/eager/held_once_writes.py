"""Calls that change a parameter which all members hold once: each gets its own, and the call is repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hfta_nb.engine.eager.member_outcome import Computation
from hfta_nb.engine.eager.state import ArrayState, Snapshot
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.rules import HeldOnceWrite
from hfta_nb.errors import FusionError

_COPIED = 8
"""In this many calls parameters that are held once are copied, to be put back; later a sum of them tells."""


def leaves_alone(state: ArrayState) -> bool:
    """Whether enough calls have left alone what members hold once, of which a copy takes as much memory again."""
    return state.unwritten >= _COPIED and state.settings.verify != "always"


def refuse_writes(state: ArrayState, before: Snapshot) -> None:
    """Raise an error if a call has written to a parameter that members hold once, however it did.

    Raises:
        HeldOnceWrite: it can be put back.
        FusionError: it can't, after many calls that did not write.
    """
    if capturing(state.generators.device):
        return
    written = before.written_once()
    if written and before.sums:
        raise FusionError(
            "a frozen parameter, which members hold once, was changed by a call after many that did not",
            where=written[0],
            remedy="fuse again, with requires_grad=True for the parameter, or verify='always': then each has its own",
        )
    if written:
        raise HeldOnceWrite(state.held_once[written[0]].data.untyped_storage().data_ptr())
    state.unwritten += 1


def separates(
    state: ArrayState,
    separate: Callable[[Collection[str]], None],
    error: BaseException,
    computation: Computation,
    result: Any,
) -> bool:
    """True if a call changes a parameter that members held once, of which each now has its own."""
    if not isinstance(error, HeldOnceWrite):
        return False
    held = {name: arena.data.untyped_storage().data_ptr() for name, arena in state.held_once.items()}
    names = [name for name, address in held.items() if address == error.address]
    if names:
        if computation.backward and result is not None:
            result[0].undo()
        separate(names)
    return bool(names)
