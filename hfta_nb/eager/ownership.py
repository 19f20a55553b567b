"""Which array a parameter belongs to, and who keeps state beside an array."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_OWNERS: Any = WeakIdKeyDictionary()


def set_owner(parameter: Tensor, array: nn.Module, name: str) -> None:
    """Note that the parameter is this array's."""
    _OWNERS[parameter] = (weakref.ref(array), name)


def owner_of(parameter: Tensor) -> tuple[nn.Module, str] | None:
    """The array that a parameter belongs to, and its name there; None if it is no array's."""
    found = _OWNERS.get(parameter)
    array = None if found is None else found[0]()
    return None if array is None else (array, found[1])


class Follower(Protocol):
    """What keeps state per member beside an array: an optimizer, lr scheduler or gradient scaler.

    Followers stand in `FusedArray.followers` (weakly), so that their state moves along with the members.
    """

    def copy_member(self, src: int, dst: int) -> None:
        """Member `dst` takes the state of member `src`."""

    def reset_member(self, index: int) -> None:
        """The member begins anew, as if nothing had been done yet."""
