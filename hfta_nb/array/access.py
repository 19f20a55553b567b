"""What the parts above ask of an array beside its public face."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hfta_nb.array import schedule, surgery
from hfta_nb.array.fused import FusedArray
from hfta_nb.array.schedule_tuner import Tuning
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.gradients import Arguments, call_module
from hfta_nb.eager.handlers import install
from hfta_nb.eager.owners import owned_by
from hfta_nb.replay.program import Program

__all__ = [
    "Arguments",
    "Inputs",
    "Program",
    "call_module",
    "checkpoint",
    "owner",
    "same_architecture",
    "snapshot",
    "take_member",
    "tuning_of",
    "untimed_block_size",
]


def owner(parameter: Tensor) -> tuple[FusedArray, str] | None:
    """The array that a parameter belongs to, and its name there; None if it is no array's."""
    found = owned_by(parameter)
    return (found[0], found[1]) if found is not None and isinstance(found[0], FusedArray) else None


def snapshot(array: FusedArray) -> Callable[[], None]:
    """Remember what a call changes beside gradients; the function returned puts it back."""
    return array._state.snapshot()


def take_member(array: FusedArray, index: int, other: FusedArray, src: int) -> None:
    """Make a member the same as member `src` of another array, in place: tensors, random streams, attributes.

    Nothing that was recorded is lost. What follows the array (optimizers, lr schedulers, scalers) is left alone.

    Raises:
        IndexError: there is no such member.
        FusionError: the two have different architectures. Nothing has changed then.
    """
    surgery.take_member(array._state, index, other._state, src)


def same_architecture(array: FusedArray, index: int, other: FusedArray, src: int) -> bool:
    """Whether `take_member` is possible."""
    return surgery.same_architecture(array._state, index, other._state, src)


def tuning_of(array: FusedArray, what: str) -> Tuning:
    """What finds out on the array's steps how many members at once are fastest; see `Tuning`."""
    return Tuning(array._calls, what)


def untimed_block_size(array: FusedArray) -> int:
    """How many members run at once where nothing may be timed; see `schedule.untimed_block_size`."""
    return schedule.untimed_block_size(array._state)


def checkpoint(array: FusedArray, on: bool) -> None:
    """Let an array compute activations again in the backward from now on, or keep them.

    Members of different architecture keep theirs in any case.
    """
    array.settings.checkpointed = on
    array._steps.cache.clear()
    install(array._state)
