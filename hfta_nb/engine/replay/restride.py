"""Gives storages of a program other strides than recorded ones: kernels compute the same from memory of any.

A layout lists the axes of a storage's memory, each with its former and its new stride. A view of the storage follows if
each of its axes is one of the memory, or a part of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hfta_nb.engine.replay.fused_kernel import Uses
from hfta_nb.engine.replay.trace import BufferView, Instruction, places, with_views


class Axis(NamedTuple):
    """An axis of memory: its length, and its stride in entries, before and after."""

    size: int
    former: int
    new: int


Layout = Sequence[Axis]
"""All axes of a storage, by their former strides from the slowest on."""


def layout_of(size: Sequence[int], former: Sequence[int], new: Sequence[int]) -> Layout | None:
    """The layout that changes the strides of a whole storage; None if there is none, or nothing changes.

    Args:
        size: of the storage's axes, in any order.
        former, new: their strides.
    """
    found: list[Axis] = []
    axes = [Axis(*axis) for axis in zip(size, former, new, strict=True) if axis[0] != 1]
    step = 1
    for axis in sorted(axes, key=lambda axis: axis.new):
        if axis.new < step:  # two entries would be in one place
            return None
        step = axis.new * axis.size
    for axis in sorted(axes, key=lambda axis: -axis.former):
        if found and found[-1].former != axis.former * axis.size:
            return None
        if found and found[-1].new == axis.new * axis.size:  # they stay beside each other: one axis
            axis = axis._replace(size=found.pop().size * axis.size)
        found.append(axis)
    return found if len(found) > 1 and found[-1].former == 1 else None


def entries(layout: Layout) -> int:
    """The number of entries of memory that a storage with this layout needs."""
    return 1 + sum((axis.size - 1) * axis.new for axis in layout)


def moved(place: BufferView, layout: Layout) -> BufferView | None:
    """The same entries after a storage has got a layout; None if strides cannot express them."""
    ends, rest = [], place.offset
    for axis in layout:
        ends.append(rest // axis.former)
        rest %= axis.former
    offset = sum(end * axis.new for end, axis in zip(ends, layout, strict=True))
    strides = []
    for size, stride in zip(place.size, place.stride, strict=True):
        if size == 1 or stride == 0:
            strides.append(stride)
            continue
        i = next(k for k, axis in enumerate(layout) if axis.former <= stride)
        steps, between = divmod(stride, layout[i].former)
        ends[i] += (size - 1) * steps
        if between or ends[i] >= layout[i].size:
            return None
        strides.append(steps * layout[i].new)
    return place._replace(stride=tuple(strides), offset=offset)


def may_have(uses: Uses, storage: int, layout: Layout) -> bool:
    """True if calls can make and read a storage in this layout: it is no result, nothing writes to it afterwards, and
    all its views follow."""
    if storage in uses.wanted or storage in uses.written or uses.made_by(storage) is None:
        return False
    trees = [(c.args, c.kwargs, c.results) for c in uses.touching(storage)]
    return all(moved(p, layout) is not None for p in places(trees) if p.storage == storage)


def restrided(calls: Sequence[Instruction], layouts: Mapping[int, Layout]) -> list[Instruction]:
    """The calls with the views of these storages in their layouts; see `may_have`."""

    def there(place: BufferView) -> BufferView:
        found = moved(place, layouts[place.storage]) if place.storage in layouts else place
        assert found is not None
        return found

    made = []
    for call in calls:
        tree = call.args, call.kwargs, call.results
        if not layouts.keys().isdisjoint(p.storage for p in places(tree)):
            args, kwargs, results = with_views(tree, there)
            call = replace(call, args=args, kwargs=kwargs, results=results)
        made.append(call)
    return made
