"""A module for each member that runs by itself.

What a member's own code keeps hold of (the module in a custom `autograd.Function`, a closure of a checkpoint) may be
called again in the backward. So the member's tensors stay in its module after the call.
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
    """One member's copy of a module, and the places of the tensors in it."""

    module: nn.Module
    slots: TensorSlots


class MemberModules:
    """Copies of a module, one per member, made when they are needed. They share its tensors.

    Args:
        source: the module, not during a call. Its train and eval flags are those of the copies.
    """

    def __init__(self, source: nn.Module) -> None:
        self.source = source
        self._pristine = _copy(source)
        self._made: dict[int, MemberModule] = {}
        self._seen = [_plain(module) for module in source.modules()]

    def of(self, member: int) -> MemberModule:
        """The module of a member."""
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
        """Take over attributes that somebody has set on the source since it was copied."""
        for place, module in enumerate(self.source.modules()):
            now, seen = _plain(module), self._seen[place]
            if now == seen:
                continue
            for copied in (self._pristine, *(own.module for own in self._made.values())):
                there = list(copied.modules())[place]
                there.__dict__.update({name: value for name, value in now.items() if seen.get(name) is not value})
            self._seen[place] = now

    def clear(self) -> None:
        """Forget what members have done to their modules."""
        self._made.clear()


def _plain(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that stand for themselves: numbers, words, functions."""
    kinds = (int, float, str, bool, type(None), type, FunctionType)
    held = module.__dict__.items()
    return {name: value for name, value in held if isinstance(value, kinds) and name not in ("forward", "training")}


def _copy(module: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers."""
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    memo |= {id(b): b for b in module.buffers()}
    return copy.deepcopy(module, memo)


def restore_storage(tensors: Mapping[str, Tensor], storages: Mapping[str, Tensor]) -> None:
    """Write parameters whose ``.data`` the model has set anew to where they were, and let them be there again.

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
    """Empty buffers, given as copies, that have grown in place."""
    return {name: tensors[name] for name, own in buffers.items() if tensors[name].shape != own.shape}
