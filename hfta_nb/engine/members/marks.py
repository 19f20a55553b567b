"""Attributes that users set on parameters (`p.infshape = ...`), which copies and stacks of parameters keep.

Torch's own copies of a parameter do not have them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

Parameter = TypeVar("Parameter", bound=Tensor)


def marked(tensor: Parameter, like: Tensor) -> Parameter:
    """The tensor, with the attributes of another one."""
    if like.__dict__:
        tensor.__dict__.update(like.__dict__)
    return tensor


def mark_copies(parameters: Iterable[Tensor | None], memo: dict[int, Any]) -> None:
    """Give the copies of parameters copies of their attributes.

    Args:
        parameters: the originals.
        memo: of `copy.deepcopy`, with the copies.
    """
    for p in parameters:
        made = memo.get(id(p))
        if p is not None and p.__dict__ and made is not p and isinstance(made, Tensor):
            made.__dict__.update(copy.deepcopy(p.__dict__, memo))


def mark_all(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Give tensors the attributes of others of the same names."""
    for name, p in like.items():
        if p.__dict__ and name in tensors:
            tensors[name].__dict__.update(p.__dict__)
