"""A member's rows of tensors that lie like the array's parameters, as its plain module has them; and back.

How an array pads a member, and what it calls its parameters, depends on the other members.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import own_names
from hfta_nb.optim.own_entries import OwnEntries


def own_rows(array: FusedArray, index: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of a member's rows, without padding, by the names of its plain module.

    Args:
        tensors: by parameter of the array ``[M, *shape]``.
    """
    own = OwnEntries(array, index)
    found = {plain: name for plain, name in own_names(array, index).items() if name in tensors and own.has(name)}
    return {plain: own.narrow(name, tensors[name][index]) for plain, name in found.items()}


@torch.no_grad()
def put_own_rows(array: FusedArray, index: int, tensors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> None:
    """Write what `own_rows` gave into the member's rows; those of parameters that it does not have stay."""
    own, names = OwnEntries(array, index), own_names(array, index)
    for plain, value in rows.items():
        if names.get(plain) in tensors:
            own.widen(names[plain], value, tensors[names[plain]][index])
