"""A separate copy of a module for each member that runs alone.

A member's code may keep references to its module (in a custom `autograd.Function`, or the closure of a checkpoint) and
call it again in the backward. Therefore the member's tensors stay in its module after the call.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from hfta_nb.errors import FusionError
from hfta_nb.members.tensor_slots import TensorSlots


class MemberModule(NamedTuple):
    """One member's copy of a module, and the slots of its tensors."""

    module: nn.Module
    slots: TensorSlots


class MemberModules:
    """Copies of a module, one per member, created on demand. They share its tensors.

    Args:
        source: the module, not during a call. The copies take over its train and eval flags.
    """

    def __init__(self, source: nn.Module) -> None:
        self.source = source
        self._pristine = _copy(source)
        self._made: dict[int, MemberModule] = {}
        self._seen = [_plain(module) for module in source.modules()]

    def of(self, member: int) -> MemberModule:
        """The copy for a member."""
        self._follow()
        own = self._made.get(member)
        if own is None:
            module = _copy(self._pristine)
            own = self._made[member] = MemberModule(module, TensorSlots(module))
        for here, there in zip(self.source.modules(), own.module.modules(), strict=False):
            if here.training is not there.training:
                there.training = here.training
        return own

    def _follow(self) -> None:
        """Copy attributes that were set on the source since the last call."""
        for place, module in enumerate(self.source.modules()):
            now, seen = _plain(module), self._seen[place]
            if now == seen:
                continue
            for copied in (self._pristine, *(own.module for own in self._made.values())):
                there = list(copied.modules())[place]
                there.__dict__.update({name: value for name, value in now.items() if seen.get(name) is not value})
            self._seen[place] = now

    def clear(self) -> None:
        """Discard the members' copies."""
        self._made.clear()


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module with immutable values: numbers, strings, functions."""
    kinds = (int, float, str, bool, type(None), type, FunctionType)
    held = module.__dict__.items()
    return {name: value for name, value in held if isinstance(value, kinds) and name not in ("forward", "training")}


def _copy(module: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers."""
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    memo |= {id(b): b for b in module.buffers()}
    return copy.deepcopy(module, memo)


def restore_storage(tensors: Mapping[str, Tensor], storages: Mapping[str, Tensor]) -> None:
    """Restore the memory of parameters whose ``.data`` the model has replaced, and write the new values there.

    Args:
        tensors: by name, as they are after a call.
        storages: the ``.data`` of some of them before the call.
    """
    for name, storage in storages.items():
        tensor = tensors[name]
        if tensor.data_ptr() == storage.data_ptr() and tensor.shape == storage.shape:
            continue
        if tensor.shape != storage.shape:
            got = [list(storage.shape), list(tensor.shape)]
            raise FusionError("a parameter changes its shape in forward", where=name, got=got)
        storage.copy_(tensor.data)
        tensor.data = storage


def grown_buffers(tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Buffers that were empty, were passed as copies, and have grown in place."""
    return {name: tensors[name] for name, own in buffers.items() if tensors[name].shape != own.shape}
