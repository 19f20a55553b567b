"""A separate copy of a module for each member that runs alone.

A member's code may keep references to its module (in a custom `autograd.Function`, or the closure of a checkpoint) and
call it again in the backward. Therefore the member's tensors stay in its module after the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from hfta_nb.engine.eager.fingerprint import fingerprint
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.flattening import prevent_flattening
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.errors import FusionError


class MemberModule(NamedTuple):
    """One member's copy of a module, and the slots of its tensors."""

    module: nn.Module
    slots: TensorSlots


class MemberModules:
    """Copies of a module, one per member, created on demand. They share its tensors.

    Args:
        source: the module, not during a call. The copies take over its train and eval flags.

    Attributes:
        made: the copies by member.
    """

    def __init__(self, source: nn.Module) -> None:
        self.source = source
        self._pristine = _copy(source)
        self.made: dict[int, MemberModule] = {}
        self._seen = _held(source)

    def of(self, member: int) -> MemberModule:
        """The copy for a member."""
        own = self.made.get(member)
        if own is None:
            module = _copy(self._pristine)
            own = self.made[member] = MemberModule(module, TensorSlots(module))
        for here, there in zip(self.source.modules(), own.module.modules(), strict=False):
            if here.training is not there.training:
                there.training = here.training
        return own

    def follow(self) -> None:
        """Make the copies anew if the source's attributes have changed since the last call, in place or not.

        What members have changed themselves is set again by the next call; see `attributes`.
        """
        if _held(self.source) != self._seen:
            self._pristine, self._seen = _copy(self.source), _held(self.source)
            self.made.clear()

    def clear(self) -> None:
        """Discard the members' copies."""
        self.made.clear()


_HOOKS = frozenset(name for name, value in nn.Module().__dict__.items() if "hooks" in name and isinstance(value, dict))
_OWN = frozenset(nn.Module().__dict__) | {"forward"}
"""Attributes that every module has, and a method that is replaced for the time of a call."""


def _held(source: nn.Module) -> list[dict[str, Any]]:
    """Fingerprints of the attributes and hooks of all submodules."""
    return [
        {
            name: fingerprint(value)
            for name, value in module.__dict__.items()
            if name not in _OWN or (value and name in _HOOKS)
        }
        for module in source.modules()
    ]


def _copy(module: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers."""
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    memo |= {id(b): b for b in module.buffers()}
    return prevent_flattening(copied_module(module, memo))


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
