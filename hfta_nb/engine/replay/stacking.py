"""Replaces sums of tensors that are zero except for one slice each by one stack.

The gradient of ``a, b, c = x.unbind(d)`` (the projections of attention) is recorded as three tensors of x's size that
are zero except for a slice, and two sums of them. If the slices fill x, that is ``stack([da, db, dc], d)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from hfta_nb.engine.replay.trace import BufferView, Instruction

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Slices:
    """The content of a storage: gradients in the slices of an axis, zeros elsewhere; created by calls from `begin`
    on."""

    axis: int
    count: int
    parts: dict[int, BufferView]
    begin: int


def stacked(calls: Sequence[Instruction]) -> list[Instruction]:
    """The calls, with sums of slices that fill a tensor replaced; unneeded calls are not removed."""
    found = list(calls)
    known: dict[BufferView, _Slices] = {}
    for i, call in enumerate(calls):
        if len(call.results) != 1 or call.results[0] is None or call.results[0].storage not in call.makes:
            continue
        out = call.results[0]
        if call.function is _aten.select_backward.default:
            grad, size, axis, index = call.args
            if isinstance(grad, BufferView) and all(isinstance(n, int) for n in (*size, axis, index)):
                axis %= len(size)
                known[out] = _Slices(axis, size[axis], {index % size[axis]: grad}, i)
        elif call.function is _aten.add.Tensor and not call.kwargs and len(call.args) == 2:
            one, two = (known.get(a) if isinstance(a, BufferView) else None for a in call.args)
            if one is None or two is None or one.axis != two.axis or one.parts.keys() & two.parts.keys():
                continue
            if any(a[1:] != out[1:] for a in call.args):
                continue
            both = replace(one, parts={**one.parts, **two.parts}, begin=min(one.begin, two.begin))
            known[out] = both
            if len(both.parts) == both.count and _standing(calls[both.begin : i], both.parts.values()):
                parts = [both.parts[k] for k in range(both.count)]
                found[i] = replace(call, function=_aten.stack.default, args=(parts, both.axis))
    return found


def _standing(calls: Sequence[Instruction], parts: Iterable[BufferView]) -> bool:
    """True if no call writes to the content of these views."""
    storages = {p.storage for p in parts}
    return not any(storages & call.writes for call in calls)
