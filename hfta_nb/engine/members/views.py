"""Views of padded tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def narrowed(tensor: Tensor, shape: Sequence[int], skip: int = 1) -> Tensor:
    """A view of the first `shape[i]` entries of each dimension after the first `skip`."""
    for d, n in enumerate(shape, skip):
        if tensor.shape[d] != n:
            tensor = tensor.narrow(d, 0, n)
    return tensor
