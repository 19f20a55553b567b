"""Numbers that a user's loss or metric returns in place of tensors: Python's, NumPy's and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.members.tree import flatten, unflatten


def is_number(value: Any) -> bool:
    """True for a number of Python or NumPy, and for an array of numbers; not for a tensor."""
    return isinstance(value, bool | int | float | complex | np.number | np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    )


def as_tensors(tree: Any, device: torch.device) -> Any:
    """The tree with tensors in place of numbers, so that each member has its own.

    Precision is kept: a float of Python becomes float64.
    """
    leaves, rebuild = flatten(tree)
    if not any(is_number(v) for v in leaves):
        return tree
    return unflatten(rebuild, [tensor_of_number(v, device) if is_number(v) else v for v in leaves])


def tensor_of_number(value: Any, device: torch.device) -> Tensor:
    """A tensor of a number or an array of numbers; what NumPy masks is NaN, as `float` makes it."""
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.result_type(value.dtype, np.float64)), np.nan)
    array = np.array(value)
    if array.dtype.kind in "fc" and array.dtype.itemsize > (8 if array.dtype.kind == "f" else 16):  # longdouble
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.complex128)
    return torch.from_numpy(array).to(device)
