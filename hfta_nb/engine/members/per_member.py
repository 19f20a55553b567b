"""The mark for values that have a member axis."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import torch
from torch import Tensor

from hfta_nb.errors import FusionError
from hfta_nb.errors.border import bounded, takes


class PerMember:
    """A value whose first axis is the member axis; made by `per_member`.

    Attributes:
        value: a tensor ``[M, ...]`` (an input), or a list of M values (a hyperparameter).
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        shown = f"shape {list(self.value.shape)}" if isinstance(self.value, Tensor) else repr(self.value)
        return f"per_member({shown})"


@takes(FusionError)
def per_member(value: Any) -> PerMember:
    """Mark a value whose first axis is the member axis, of length M.

    Args:
        value: a tensor ``[M, *input]`` to be an input of an array; or a list of M values for a hyperparameter
            of an optimizer or lr scheduler that takes lists itself (`betas`, `milestones`).

    Returns:
        The value, marked.

    Raises:
        FusionError: the value has no first axis.

    Example:
        >>> per_member(torch.zeros(4, 2))
        per_member(shape [4, 2])
    """
    value = in_full(value)
    if isinstance(value, PerMember):
        return value
    if isinstance(value, Tensor):
        if value.ndim == 0:
            raise FusionError("a tensor without axes has no member axis", where="per_member", got=value)
        return PerMember(value)
    if isinstance(value, list | tuple):
        if value and all(isinstance(v, Tensor) for v in value):
            return PerMember(torch.stack(tuple(value)))
        return PerMember(list(value))
    raise FusionError(
        "neither a tensor nor a list", where="per_member", got=value, accepted="a tensor [M, ...] or a list"
    )


def in_full(value: Any) -> Any:
    """What can be iterated only once (a generator, `map`, `zip`) as a list, within lists and tuples too.

    Whatever a person gives passes through here where it comes in: it is read more than once, as for each member.
    """
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
        return [in_full(v) for v in bounded(value, FusionError, "an iterator")]
    if type(value) in (list, tuple):
        found = [in_full(v) for v in value]
        same = all(new is old for new, old in zip(found, value, strict=True))
        return value if same else type(value)(found)
    if isinstance(value, PerMember) and isinstance(value.value, list):
        return PerMember(in_full(value.value))
    return value
