"""Puts the results of an array's blocks together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hfta_nb.errors import FusionError
from hfta_nb.members.tree import flatten, unflatten


def concatenate(results: list[Any]) -> Any:
    """The results of successive blocks as one, with tensors joined along the member axis.

    Raises:
        FusionError: the shapes of members' tensors differ, so that they cannot be joined.
    """
    if len(results) == 1:
        return results[0]
    parts = [flatten(r) for r in results]
    first, rebuild = parts[0]
    joined = []
    for values in zip(*(leaves for leaves, _ in parts), strict=True):
        if isinstance(values[0], Tensor):
            shapes = [list(v.shape[1:]) for v in values]
            if any(s != shapes[0] for s in shapes):
                raise FusionError(
                    "the members' outputs have different shapes",
                    where="array(...)",
                    got=shapes,
                    remedy="use array.backward or array.evaluate, which see one member's output at a time",
                )
            joined.append(torch.cat(values))
        else:
            joined.append(values[0])
    del first
    return unflatten(rebuild, joined)
