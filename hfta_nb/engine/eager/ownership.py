"""Which array a parameter belongs to, and the objects that keep state beside an array."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_OWNERS: Any = WeakIdKeyDictionary()


def set_owner(parameter: Tensor, array: nn.Module, name: str) -> None:
    """Register the parameter as this array's."""
    _OWNERS[parameter] = (weakref.ref(array), name)


def owner_of(parameter: Tensor) -> tuple[nn.Module, str] | None:
    """The array that a parameter belongs to, and its name there; None if it belongs to no array."""
    found = _OWNERS.get(parameter)
    array = None if found is None else found[0]()
    return None if array is None else (array, found[1])


def is_of_array(tensor: Tensor) -> bool:
    """Whether this is a parameter of an array or the whole gradient of one, detached or not; a member's row is not."""
    own = (tensor.data_ptr(), tensor.shape)
    held = (t for p in list(_OWNERS) for t in (p, p.grad) if t is not None and t.layout is torch.strided)
    return tensor.layout is torch.strided and any((t.data_ptr(), t.shape) == own for t in held)


class Follower(Protocol):
    """Keeps state per member beside an array: an optimizer, lr scheduler or gradient scaler.

    Followers are registered (weakly) in `FusedArray.followers`, so that their state moves along with the members.
    """

    def copy_member(self, src: int, dst: int) -> None:
        """Copy the state of member `src` to member `dst`."""

    def reset_member(self, index: int) -> None:
        """Reset the member's state to its initial value."""
