"""What other parts use of an array and of the engine, besides the public face.

Parts above `array` import from here and from `hfta_nb.engine.array`, but not from the parts below `array`. The table
of layers names two exceptions, which involve no array: the C kernel of Adam (`optim`) and graph capture (`step`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import execution_schedule, fusing, held_once, schedule_tuner, surgery, tensor_storage
from hfta_nb.engine.array import extra_states as extras
from hfta_nb.engine.array.extra_states import kept_beside
from hfta_nb.engine.array.fused import FusedArray
from hfta_nb.engine.array.fused_losses import held
from hfta_nb.engine.array.schedule_tuner import Tuning
from hfta_nb.engine.array.user_functions import alone_where_needed, changes
from hfta_nb.engine.eager import attributes, saved_functions
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.current_member import alone
from hfta_nb.engine.eager.find_prefix import find_prefix
from hfta_nb.engine.eager.foreign_leaves import Owned, check_leaves
from hfta_nb.engine.eager.frozen_prefix import Featured, Prefix
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.gradients import Arguments, call_module
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.model_hooks import writing_classes
from hfta_nb.engine.eager.ownership import owner_of
from hfta_nb.engine.eager.plain_copies import plain_member
from hfta_nb.engine.eager.returned_numbers import is_number, tensor_of_number
from hfta_nb.engine.eager.shared_modules import warn_of_changing, warn_of_copies
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.engine.kernels.native.build import own_kernels
from hfta_nb.engine.kernels.strategy import timing_cache, variant_trials
from hfta_nb.engine.members.arena import Arena, is_held_once
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.generators import seeded_state, streams_apart
from hfta_nb.engine.members.held_losses import HeldLoss, attach, of_member, submodule_of, take_losses, unseen
from hfta_nb.engine.members.padded_entries import clear_padded, keep_bits
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.threads import thread_scope
from hfta_nb.engine.members.tree import flatten, tensor_map, unflatten
from hfta_nb.engine.replay.program import Program
from hfta_nb.errors import FusionError

__all__ = [
    "Arguments",
    "Featured",
    "FunctionStates",
    "HeldLoss",
    "Inputs",
    "Owned",
    "Prefix",
    "Program",
    "alone",
    "alone_where_needed",
    "attach",
    "attribute_changes",
    "attributes_of",
    "call_module",
    "changes",
    "check_leaves",
    "checkpoint",
    "clear_padded",
    "extra_states",
    "find_prefix",
    "flatten",
    "functions_of",
    "fuse_preallocated",
    "held",
    "is_held_once",
    "is_number",
    "keep_bits",
    "kept_beside",
    "kept_by",
    "kept_times",
    "know_calls",
    "load_tensors",
    "looked_at",
    "of_member",
    "own_kernels",
    "own_names",
    "own_tensors",
    "owner",
    "parameter_arenas",
    "plain_copy",
    "put_attributes",
    "put_tensors",
    "same_architecture",
    "saved_functions",
    "seeded_state",
    "set_attributes",
    "snapshot",
    "sparse_gradients",
    "streams_apart",
    "submodule_of",
    "suits",
    "take_losses",
    "take_member",
    "tensor_map",
    "tensor_of_number",
    "thread_scope",
    "tuning_of",
    "under_trial",
    "unflatten",
    "unseen",
    "untimed_block_size",
    "warn",
    "warn_of_changing",
    "warn_of_copies",
]


def owner(parameter: Tensor) -> tuple[FusedArray, str] | None:
    """The array that a parameter belongs to, and its name there; None if it belongs to no array."""
    found = owner_of(parameter)
    return (found[0], found[1]) if found is not None and isinstance(found[0], FusedArray) else None


def functions_of(array: FusedArray) -> FunctionStates:
    """What losses and metrics keep for each member."""
    return array._state.functions


def sparse_gradients(array: FusedArray) -> set[str]:
    """Names of the parameters whose gradients are sparse where the model asks for it; an optimizer adds its own."""
    return array._state.engine.sparse


def kept_by(model: nn.Module) -> tuple[type, ...]:
    """The classes of an array's or a plain module's modules whose code may keep something beside the modules."""
    return writing_classes(model._state.models if isinstance(model, FusedArray) else [model])


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy, as whoever built the module may have kept a part of it; the module itself if it can't be copied."""
    try:
        return copied_module(module)
    except FusionError:
        return module


def snapshot(array: FusedArray) -> Callable[[], None]:
    """Save the state that a call changes, except gradients; the returned function restores it."""
    return array._state.snapshot()


def take_member(array: FusedArray, index: int, other: FusedArray, src: int, consumed: bool = False) -> None:
    """Make a member the same as member `src` of another array, in place: tensors, random streams, attributes.

    Nothing that was recorded is lost. What follows the array (optimizers, lr schedulers, scalers) is left alone.

    Args:
        consumed: nobody uses the other array any more.

    Raises:
        IndexError: there is no such member.
        FusionError: the two have different architectures, and the array is not preallocated. Nothing has changed then.
    """
    surgery.take_member(array._state, index, other._state, src, consumed)


def know_calls(array: FusedArray, other: FusedArray) -> None:
    """Record the calls that another array replays at once, and from one trace: members of it go on in this array."""
    array._calls.learn(other._calls)


def is_padded(array: FusedArray) -> bool:
    """Whether the array has been built for members of different architectures."""
    return array._state.engine.architectures is not None


def attributes_of(array: FusedArray, index: int) -> dict[tuple[str, str], Any]:
    """The attributes that a member's forward has set, by path of the submodule and name; hooks are left out."""
    with array._state.own_attributes():
        found = array._state.engine.attributes.of(index)
    return {place: value for place, value in found.items() if attributes.is_ordinary(place[1])}


def set_attributes(array: FusedArray, index: int, values: Mapping[tuple[str, str], Any]) -> None:
    """Let a member have these attributes."""
    with array._state.own_attributes():
        array._state.engine.attributes.keep(index, values)
    array._state.engine.reset_member_modules()


def attribute_changes(module: nn.Module) -> Callable[[], dict[tuple[str, str], Any]]:
    """A function that returns the attributes of a plain module that have changed since now; see `attributes_of`."""
    before = attributes.AttributesBefore(module, TensorSlots(module))
    return lambda: {place: v for place, v in before.changes().items() if attributes.is_ordinary(place[1])}


def put_attributes(module: nn.Module, values: Mapping[tuple[str, str], Any]) -> None:
    """Let a plain module have these attributes."""
    attributes.put(module, values)


def extra_states(array: FusedArray) -> dict[str, list[Any]]:
    """By key of the `state_dict`, what the members save beside tensors; see `nn.Module.get_extra_state`."""
    return extras.extra_states(array._state)


def looked_at(array: FusedArray, index: int) -> nn.Module:
    """A member as a plain module to be called only: what is held once is the array's memory, of the rest each tensor
    has memory of its own."""
    plain = plain_member(array._state, index, apart=False)
    for tensor in (*plain.parameters(), *plain.buffers()):
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            tensor.data = tensor.data.clone()
    return plain


def own_names(array: FusedArray, index: int) -> dict[str, str]:
    """The names that a member's own parameters have in the array, by those that they have in its plain module.

    They differ where members are sequences of unlike length. Another array may have other names for the same member.
    """
    return surgery.own_names(array._state, index)


def own_tensors(array: FusedArray, index: int) -> dict[str, Tensor]:
    """Views of a member's parameters and buffers, without padding, by the names of its plain module."""
    return tensor_storage.own_tensors(array._state, index)


def put_tensors(array: FusedArray, index: int, values: Mapping[str, Tensor]) -> None:
    """Copy values into a member's parameters and buffers, by the names of its plain module."""
    held_once.put_tensors(array._state, partial(own_tensors, array, index), values)


@torch.no_grad()
def load_tensors(array: FusedArray, values: Mapping[str, Tensor]) -> None:
    """Copy values ``[M, *shape]`` into parameters and buffers of all members, by their names in the array."""
    own = dict(array.named_parameters()) | dict(array.named_buffers())
    with held_once.Loading(array._state):
        for name, value in values.items():
            own[name].copy_(value)


def parameter_arenas(array: FusedArray) -> list[Arena]:
    """The arenas of all parameters, those of each parameter that members hold once included."""
    return array._state.parameter_arenas


def suits(array: FusedArray, index: int, other: FusedArray, src: int) -> bool:
    """Whether `take_member` is possible."""
    return surgery.suits(array._state, index, other._state, src)


def fuse_preallocated(modules: Sequence[nn.Module], seeds: Sequence[int], verify: str) -> FusedArray:
    """As `fuse`; members of other sizes can take the places of those that leave, where the model keeps zeros at zero.

    The modules are used up: copying each of many small ones takes longer than a training step.

    Source: see `padded.preallocated`.
    """
    return fusing.fuse_preallocated(modules, seeds, verify)


def same_architecture(array: FusedArray, index: int, other: FusedArray, src: int) -> bool:
    """Whether two members differ in nothing but the values of their tensors."""
    return surgery.same_architecture(array._state, index, other._state, src)


def tuning_of(array: FusedArray, what: str) -> Tuning:
    """A tuner that finds the fastest schedule on the array's training steps; see `Tuning`."""
    return Tuning(array._calls, what)


def foresee(array: FusedArray, steps: float, done: int, brief: bool) -> None:
    """Set an array to how many steps it will make; see `schedule_tuner.foresee`."""
    schedule_tuner.foresee(array._state, steps, done, brief)


def untimed_block_size(array: FusedArray) -> int:
    """The block size to use if nothing may be timed; see `execution_schedule.untimed_block_size`."""
    return execution_schedule.untimed_block_size(array._state)


def checkpoint(array: FusedArray, on: bool) -> None:
    """Turn activation checkpointing on or off.

    It has no effect on members of different architectures.
    """
    array.settings.checkpointed = on
    array._calls.steps.clear()
    install(array._state)


def kept_times(device: torch.device) -> timing_cache.Kept:
    """What was measured once on this machine, and holds for all runs on it."""
    return timing_cache.kept(device)


def under_trial(pid: int, environment: Mapping[str, str]) -> str:
    """The computation that a process was trying when it ended, in words; empty if there was none.

    The next process with this environment does not try it.

    Args:
        pid: of the process.
        environment: its variables.
    """
    folder = timing_cache.folder(environment)
    return "" if folder is None else variant_trials.under_trial(folder, pid)
