"""Expresses a strided view of memory by permute, view, slice, select and expand.

A compiler fuses through these operations. It cannot through `as_strided`, which names memory and so requires that its
base is stored, and stored with those strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hfta_nb.engine.replay.trace import BufferView

_aten = torch.ops.aten

Operation = tuple[Any, tuple[Any, ...]]
"""An overload and its arguments after the tensor."""


class _Digit(NamedTuple):
    """An axis of the view: entries `start`, `start + step`, ... of an axis of length `length`."""

    size: int
    length: int
    start: int
    step: int

    @property
    def end(self) -> int:
        return self.start + (self.size - 1) * self.step + 1

    @property
    def whole(self) -> bool:
        return self.size == self.length


def view_chain(base: BufferView, place: BufferView) -> list[Operation] | None:
    """The operations that make `place` of `base`, two views of one storage; None if there are none.

    None are found where `base` has gaps or repeats entries, or where entries of `place` overlap other than by
    repetition along an axis.
    """
    if (base.size, base.stride, base.offset) == (place.size, place.stride, place.offset):
        return []
    length, stored = math.prod(base.size), _descending(base)
    ones = place._replace(size=tuple(1 if s == 0 else n for n, s in zip(place.size, place.stride, strict=True)))
    axes, start = _descending(ones), place.offset - base.offset
    if not length or not base.permuted(stored).operand.contiguous or start < 0 or start + place.reach > length:
        return None
    found: list[Operation] = [] if stored == sorted(stored) else [(_aten.permute.default, (stored,))]
    shape = [base.size[axis] for axis in stored]
    longest = max((n * s for n, s in zip(ones.size, ones.stride, strict=True) if n > 1), default=1)
    if length % longest and longest <= length:  # the rows do not divide the memory, but a part of it
        first = min(start, length - longest)
        found += [] if len(shape) == 1 else [(_aten.view.default, ([length],))]
        found.append((_aten.slice.Tensor, (0, first, first + longest)))
        length, start, shape = longest, start - first, [longest]
    digits, rest, inner = _digits(ones.permuted(axes), length, start)
    if digits is None:
        return None
    lengths = [d.length for d in digits] + ([inner] if inner > 1 else [])
    found += [] if lengths == shape else [(_aten.view.default, (lengths,))]
    found += [(_aten.slice.Tensor, (i, d.start, d.end, d.step)) for i, d in enumerate(digits) if not d.whole]
    found += [(_aten.select.int, (len(digits), rest))] if inner > 1 else []
    back = [axes.index(axis) for axis in range(len(axes))]
    found += [] if back == sorted(back) else [(_aten.permute.default, (back,))]
    found += [] if ones.size == place.size else [(_aten.expand.default, (list(place.size),))]
    return found


def _descending(place: BufferView) -> list[int]:
    """The axes from the largest to the smallest stride; an axis of length 1 follows the axis before it."""
    strides: list[float] = []
    for size, stride in zip(place.size, place.stride, strict=True):
        strides.append(stride if size > 1 else strides[-1] if strides else math.inf)
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _digits(place: BufferView, length: int, start: int) -> tuple[Sequence[_Digit] | None, int, int]:
    """The axes of `place`, strides descending, as parts of the axes of memory; what is left of the start; and the
    length of the axis that is left, of which one entry belongs to the view.

    A place in memory is a number with one digit for each axis, whose unit divides the axis' stride and the unit before.
    """
    found, unit = [], length
    for size, stride in zip(place.size, place.stride, strict=True):
        if size == 1:
            found.append(_Digit(1, 1, 0, 1))
            continue
        below = math.gcd(unit, stride)
        digit = _Digit(size, unit // below, start // below, stride // below)
        if digit.end > digit.length:
            return None, 0, 0
        found.append(digit)
        unit, start = below, start % below
    return found, start, unit
