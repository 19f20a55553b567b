"""Values of which one is a view of another's memory: copies of both would no longer be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.members.held import walk

K = TypeVar("K")


def overlapped(written: Iterable[K], held: Mapping[K, Any]) -> K | None:
    """The first of some values that were written in place and share memory with another object; None without one.

    Args:
        written: their keys.
        held: all values; tensors and NumPy arrays in containers count too.
    """
    keys = [key for key in written if any(True for _ in _extents(held.get(key)))]
    every = [(start, stop, own) for value in held.values() for start, stop, own in _extents(value)] if keys else []
    for key in keys:
        for start, stop, own in _extents(held[key]):
            if any(a < stop and start < b and other is not own for a, b, other in every):
                return key
    return None


def _extents(value: Any) -> Iterator[tuple[int, int, Any]]:
    """The tensors and arrays in a value, each with the first address of its memory and the one after the last."""
    for v in walk([value]):
        if isinstance(v, np.ndarray) and v.size:
            steps = [(n - 1) * s for n, s in zip(v.shape, v.strides, strict=True)]
            start = v.__array_interface__["data"][0] + sum(s for s in steps if s < 0)
            yield start, start + sum(map(abs, steps)) + v.itemsize, v
        elif isinstance(v, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(v) and _has_memory(v):
            reach = sum((n - 1) * abs(s) for n, s in zip(v.shape, v.stride(), strict=True)) + 1
            yield v.data_ptr(), v.data_ptr() + reach * v.element_size(), v


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0
