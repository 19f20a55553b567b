"""What a recorded step's results need, what never changes, and where gradients may be written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from hfta_nb.kernels.strategy.variants import Operand
from hfta_nb.replay.out_variants import SHAPE_ONLY
from hfta_nb.replay.record import BufferView, Instruction, Trace

WRITES_UNSAID = ("batch_norm",)
"""In the names of kernels that write to arguments without their schema saying so."""


def needed(trace: Trace, wanted: set[int]) -> list[Instruction]:
    """Calls on which the results depend, that change what was there before, draw, or have no result."""
    needed = set(wanted)
    kept = []
    for call in reversed(trace.calls):
        effects = call.draws or (not call.makes and not any(call.results))
        changes = call.writes & (trace.outside | needed)
        unsaid = any(word in call.function._schema.name for word in WRITES_UNSAID)
        if effects or changes or unsaid or needed & set(call.makes):
            needed |= call.writes | (set() if call.function in SHAPE_ONLY else call.reads())
            kept.append(call)
    return kept[::-1]


def constant(calls: Sequence[Instruction]) -> set[int]:
    """Storages made from nothing, or from such, and never written to."""
    written = {s for c in calls for s in c.writes}
    found: set[int] = set()
    for call in calls:
        # Empty memory is for writing into.
        if call.makes and not call.draws and not call.writes and "empty" not in call.function._schema.name:
            reads = set() if call.function in SHAPE_ONLY else call.reads()
            if reads <= found and not set(call.makes) & written:
                found |= set(call.makes)
    return found


def order(place: BufferView, out: BufferView) -> list[int] | None:
    """The axes of `place` in the order of `out`, if both are the whole of a storage in another order of axes."""
    if place.dtype != out.dtype or place.offset != out.offset or len(place.size) != len(out.size):
        return None
    left = list(range(len(place.size)))
    axes = []
    for size, stride in zip(out.size, out.stride, strict=True):
        axis = next((a for a in left if place.size[a] == size and (place.stride[a] == stride or size == 1)), None)
        if axis is None:
            return None
        axes.append(axis)
        left.remove(axis)
    return axes


def fitting(room: Tensor, place: BufferView, out: BufferView, anywhere: bool) -> Tensor | None:
    """Where a kernel may write `out`, of which `place` is a view, so that this lands in the room; None for nowhere.

    Args:
        room: for what lies in `place`.
        place, out: of one storage.
        anywhere: the kernel may write with any strides.
    """
    whole = all(Operand(p.size, p.stride, p.dtype).contiguous for p in (place, out)) and room.is_contiguous()
    if whole and room.dtype == out.dtype and place.offset == out.offset and room.numel() == math.prod(out.size):
        return room.view(out.size)
    axes = order(place, out) if anywhere else None
    return None if axes is None else room.permute(axes)
