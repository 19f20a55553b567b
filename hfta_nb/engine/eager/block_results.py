"""Puts the results of an array's blocks together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.eager.returned_numbers import is_number
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.errors import FusionError


def concatenate(results: list[Any]) -> Any:
    """The results of successive blocks as one, with tensors joined along the member axis.

    Raises:
        FusionError: the shapes of members' tensors differ, so that they cannot be joined; or other values do.
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
            joined.append(_same(values))
    del first
    return unflatten(rebuild, joined)


def _same(values: tuple[Any, ...]) -> Any:
    """A value that is not a tensor, which all blocks have; objects that can't be compared count as equal.

    Raises:
        FusionError: blocks have different values.
    """
    first = values[0]
    if any(isinstance(v, str) or is_number(v) for v in values) and not all(_equal(v, first) for v in values):
        raise FusionError(
            "the members' outputs have different values that are not tensors",
            where="array(...)",
            got=list(values),
            remedy="return tensors in their place, or use array.evaluate, which takes numbers",
        )
    return first


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return a == b if isinstance(a, str) else bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))
