"""Aligns the modules of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

_MISFIT = float("-inf")


Slot = dict[int, int]
"""By architecture, the index of its module in its own sequence."""


def aligned(sequences: Mapping[int, Sequence[nn.Module]]) -> list[Slot]:
    """One sequence for all: each slot holds one module or none of each architecture, in the architecture's order.

    Sequences of equal length are aligned by position. Otherwise, the sequences are merged into the longest one by one,
    so that the modules of a slot are as similar as possible. A module without a match gets a separate slot.
    """
    order = sorted(sequences, key=lambda a: -len(sequences[a]))
    longest = order[0]
    slots: list[Slot] = [{longest: i} for i in range(len(sequences[longest]))]
    for a in order[1:]:
        present = [sequences[next(iter(s))][next(iter(s.values()))] for s in slots]
        slots = _taken_up(slots, present, a, sequences[a])
    return slots


def _taken_up(slots: list[Slot], present: list[nn.Module], a: int, own: Sequence[nn.Module]) -> list[Slot]:
    n, m = len(slots), len(own)
    like = [[likeness(x, y) for y in own] for x in present]
    if n == m and all(like[i][i] > _MISFIT for i in range(n)):
        return [{**slot, a: i} for i, slot in enumerate(slots)]
    # best[i][j]: the highest total likeness of slots[i:] and own[j:]; either may contain modules that the other lacks.
    best = [[0.0] * (m + 1) for _ in range(n + 1)]
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], like[i][j] + best[i + 1][j + 1])
    found: list[Slot] = []
    i = j = 0
    while i < n or j < m:
        if i < n and j < m and like[i][j] + best[i + 1][j + 1] >= max(best[i + 1][j], best[i][j + 1]):
            found.append({**slots[i], a: j})
            i, j = i + 1, j + 1
        elif j == m or (i < n and best[i + 1][j] >= best[i][j + 1]):
            found.append(slots[i])
            i += 1
        else:
            found.append({a: j})
            j += 1
    return found


def likeness(a: nn.Module, b: nn.Module) -> float:
    """How similar two modules are: higher if classes, names of tensors and sizes agree."""
    left, right = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (a, b))
    both = left.keys() & right.keys()
    if any(left[n].ndim != right[n].ndim or left[n].dtype != right[n].dtype for n in both):
        return _MISFIT
    if type(a).__qualname__ != type(b).__qualname__:
        return 0.25 if left or right else 0.5
    names = left.keys() | right.keys()
    sizes = [m == n for name in both for m, n in zip(left[name].shape, right[name].shape, strict=True)]
    return 1.0 + (len(both) / len(names) if names else 1.0) + (sum(sizes) / len(sizes) if sizes else 1.0)
