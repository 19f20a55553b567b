"""Objects among the arguments of a call that it may change: random streams, counters, NumPy's arrays, containers.

Alone, each member has arguments of its own. Here members get copies of such an object, and what all of them make of it
is the caller's object afterwards, as with tensors. Lists and dicts with tensors are built anew for each call; that a
call has changed one is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from hfta_nb.engine.eager.holders import of_library
from hfta_nb.engine.eager.joined_values import copy_of
from hfta_nb.engine.eager.mutable_values import (
    is_mutable,
    may_overwrite,
    overwrite,
    restore_value,
)
from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.random_streams import STREAMS

_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_IN_PLACE = (*STREAMS, np.ndarray, set, deque, bytearray)


class GivenObjects:
    """What members get in one attempt of a call.

    Args:
        leaves: of the call's inputs.
        containers: note the lists and dicts as well.
    """

    def __init__(self, leaves: Sequence[Any], containers: bool) -> None:
        self._leaves = leaves
        self._at = [k for k, v in enumerate(leaves) if _may_change(v)]
        self._made: list[list[Any]] = [[] for _ in self._at]
        self._built: list[tuple[Any, list[Any]]] | None = [] if containers else None

    def copied(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves with copies of objects; what can't be copied stays itself."""
        if not self._at:
            return leaves
        own = with_copies(leaves)
        for k, made in zip(self._at, self._made, strict=True):
            made.append(own[k])
        return own

    def note(self, tree: Any, leaves: list[Any]) -> None:
        """Note the arguments that were built of some leaves."""
        if self._built is not None:
            self._built.append((tree, leaves))

    def give_back(self) -> bool:
        """Let the caller's objects be what all members have made of theirs.

        Returns:
            False if members differ in that, or if it holds tensors: then the object is left as it was.
        """
        agreed = True
        for k, made in zip(self._at, self._made, strict=True):
            value = self._leaves[k]
            if all(same_value(own, value) for own in made):
                continue
            first = made[0]
            unlike = not all(same_value(own, first) for own in made[1:])
            if unlike or any(isinstance(inner, Tensor) for inner in walk([first])) or not _give(value, first):
                agreed = False
        return agreed

    def changed_containers(self) -> bool:
        """Whether something was added to a list, a dict or an object with tensors, or replaced in it."""
        return any(not _only_less(flatten(tree)[0], leaves) for tree, leaves in self._built or ())


def with_copies(leaves: Sequence[Any]) -> list[Any]:
    """The leaves with copies of the objects that a call may change; what can't be copied stays itself."""
    memo = dict[int, Any]()
    return [copy_of(v, memo) if _may_change(v) else v for v in leaves]


def _may_change(value: Any) -> bool:
    kind = type(value)
    if kind in _ATOMS or isinstance(value, Tensor | nn.Module) or not is_mutable(value):
        return False
    return isinstance(value, _IN_PLACE) or (bool(getattr(value, "__dict__", None)) and not of_library(kind))


def _give(value: Any, new: Any) -> bool:
    """Give an object the content of another; False if it can't be changed."""
    return restore_value(value, new) is value or (may_overwrite(value, new) and overwrite(value, new))


def _only_less(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether all of what there is now was there before, in this order."""
    left = iter(before)
    return all(any(_is_same(value, old) for old in left) for value in now)


def _is_same(value: Any, old: Any) -> bool:
    return value is old or (type(value) in _ATOMS and type(value) is type(old) and value == old)
