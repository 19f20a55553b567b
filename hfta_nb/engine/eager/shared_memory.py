"""Finds tensors and arrays of a model or a function that are views of one memory.

Each value that one keeps is copied for each member by itself. A view and what it is a view of would part then:
what is written into one would not be seen in the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch as functorch

from hfta_nb.engine.members.tree import versions
from hfta_nb.errors import FusionError

Key = tuple[Any, int]
"""The place of a value, and the number of the tensor or array within it."""

_MOST_DEPTH = 4
_MOST_WORK = 10_000
"""Steps after which two arrays of unusual strides count as overlapping."""


def parts(values: Mapping[Any, Any]) -> dict[Key, Any]:
    """The tensors and arrays in values, by key."""
    return {(place, i): v for place, value in values.items() for i, v in enumerate(_held(value))}


def _held(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors and arrays in a value and in containers within it; objects are places of their own."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif depth < _MOST_DEPTH and isinstance(value, list | tuple | set | deque | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _held(inner, depth + 1)


def overlapping(values: Mapping[Key, Any]) -> set[Key]:
    """The keys of those that share memory with another one; the same object under two keys does not count."""
    extents = {key: extent for key, value in values.items() if (extent := _extent(value)) is not None}
    ordered = sorted(extents, key=lambda key: _bounds(extents[key])[0])
    found, reaching = set[Key](), list[Key]()
    for key in ordered:
        start = _bounds(extents[key])[0]
        reaching = [other for other in reaching if _bounds(extents[other])[1] > start]
        for other in reaching:
            if values[other] is not values[key] and _share(extents[other], extents[key]):
                found |= {other, key}
        reaching.append(key)
    return found


def views_of(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, list[str]]:
    """The values that share memory with others, or with each other, by their names; see `overlapping`.

    Args:
        values, others: by name, values with tensors or arrays.
    """
    found = dict[str, list[str]]()
    own = parts(values)
    every = {**own, **parts(others)} if own else {}
    places = {key: (extent, _bounds(extent)) for key, v in every.items() if (extent := _extent(v)) is not None}
    for a, (name, _) in ((key, key) for key in own if key in places):
        extent, (start, end) = places[a]
        for b, (other, (first, last)) in places.items():
            if first < end and start < last and every[a] is not every[b] and _share(extent, other):
                found.setdefault(name, []).append(b[0])
    return found


def view_error(what: str, where: str) -> FusionError:
    """The error for values that are written into and have a view."""
    return FusionError(
        f"{what} keeps a view, and writes into what it is a view of, or trains it",
        where=where,
        accepted="tensors and arrays that share no memory, or the same one under several names",
        remedy="keep one of them (self.out.weight = self.embed.weight), and take the view in each call: self.buffer[0]",
    )


class Watched:
    """Tensors and arrays, to find those that are written into.

    Args:
        values: by key.
    """

    def __init__(self, values: Mapping[Key, Any]) -> None:
        self.values = dict(values)
        self._before = {key: _content(value) for key, value in values.items()}

    def written(self, keys: Collection[Key]) -> list[Key]:
        """Those of some keys whose tensor or array has been written into since."""
        return [k for k in keys if k in self.values and _content(self.values[k]) != self._before[k]]


def _content(value: Any) -> Any:
    """Something that differs once a tensor or array has been written into."""
    return value.tobytes() if isinstance(value, np.ndarray) else versions([_unwrapped(value)])


def _unwrapped(value: Tensor) -> Tensor:
    while functorch.is_functorch_wrapped_tensor(value):
        value = functorch.get_unwrapped(value)
    return value


def _extent(value: Any) -> Any:
    """An array that lies where a tensor or array does, and not to be read; None if it lies nowhere."""
    if isinstance(value, np.ndarray):
        return value if value.size else None
    tensor = _unwrapped(value)
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel() or not tensor.data_ptr():
        return None
    size = tensor.element_size()
    strides = tuple(n * size for n in tensor.stride())
    data = {"shape": tuple(tensor.shape), "typestr": f"|V{size}", "data": (tensor.data_ptr(), True), "strides": strides}
    return np.asarray(SimpleNamespace(__array_interface__={**data, "version": 3}))


def _bounds(extent: Any) -> tuple[int, int]:
    first: int = extent.__array_interface__["data"][0]
    steps = [(n - 1) * stride for n, stride in zip(extent.shape, extent.strides, strict=True)]
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + extent.itemsize


def _share(a: Any, b: Any) -> bool:
    try:
        return np.shares_memory(a, b, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
