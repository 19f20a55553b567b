"""Liveness: which calls the results need, which values are constant, and where gradients may be written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from hfta_nb.engine.replay.out_variants import SHAPE_ONLY
from hfta_nb.engine.replay.trace import BufferView, Instruction, Trace

WRITES_UNSAID = ("batch_norm",)
"""In the names of kernels that write to arguments without declaring it in their schema."""


def needed(trace: Trace, wanted: set[int]) -> list[Instruction]:
    """Calls that results depend on, that change existing values, draw, or have no result."""
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
    """Storages created from nothing, or from other constants, and never written to."""
    written = {s for c in calls for s in c.writes}
    found: set[int] = set()
    for call in calls:
        # Empty memory is created to be written to.
        if call.makes and not call.draws and not call.writes and "empty" not in call.function._schema.name:
            reads = set() if call.function in SHAPE_ONLY else call.reads()
            if reads <= found and not set(call.makes) & written:
                found |= set(call.makes)
    return found


def order(place: BufferView, out: BufferView) -> list[int] | None:
    """The axes of `place` in the order of `out`, if both cover a storage in different orders of axes."""
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


def fitting(buffer: Tensor, place: BufferView, out: BufferView, anywhere: bool) -> Tensor | None:
    """The view of `buffer` into which a kernel may write `out`, so that `place`, a view of `out`, is stored in
    `buffer`; else None.

    Args:
        buffer: the destination of `place`.
        place, out: of one storage.
        anywhere: the kernel may write with any strides.
    """
    whole = all(p.operand.contiguous for p in (place, out)) and buffer.is_contiguous()
    if whole and buffer.dtype == out.dtype and place.offset == out.offset and buffer.numel() == math.prod(out.size):
        return buffer.view(out.size)
    axes = order(place, out) if anywhere else None
    return None if axes is None else buffer.permute(axes)
