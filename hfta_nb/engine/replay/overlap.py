"""Tests whether two views of a storage share memory."""

from __future__ import annotations

import torch

from hfta_nb.engine.replay.trace import BufferView


def overlap(a: BufferView, b: BufferView) -> bool:
    """True if two views share an entry."""
    if a.storage != b.storage or a.dtype != b.dtype:
        return a.storage == b.storage
    size = max(_end(a), _end(b))
    marks = torch.zeros(size, dtype=torch.bool)
    marks.as_strided(a.size, a.stride, a.offset).fill_(True)
    return bool(marks.as_strided(b.size, b.stride, b.offset).any())


def _end(place: BufferView) -> int:
    if 0 in place.size:
        return place.offset
    return place.offset + 1 + sum((n - 1) * s for n, s in zip(place.size, place.stride, strict=True))
