"""Moves entries so that each member's come first: concatenation and splitting of padded dimensions, heads.

The positions of entries are computed once per sizes, as an index per member; one `gather` moves all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.padded.member_numbers import value_of
from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.rules.elementwise import named
from hfta_nb.engine.padded.tags import Counts, box, full, tag_of, tagged
from hfta_nb.engine.rules.rule_mode import arguments

Shape = tuple[int, ...]
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""The positions of a member's entries along a dimension, before and after."""


def moved(mode: PaddedMode, x: Tensor, dim: int, places: Sequence[Place], size: int) -> Tensor:
    """Each member's entries moved along a dimension, with zeros elsewhere; not tagged.

    Args:
        places: per member, the positions of its entries before and after.
        size: of the dimension in the result.
    """
    context = mode.context
    with context.outside():
        whole = context.stacked(x)
        index, own = _index(tuple(places), size, x.device)
        shape = [1] * whole.ndim
        shape[0], shape[dim + 1] = len(places), size
        wanted = [*whole.shape[: dim + 1], size, *whole.shape[dim + 2 :]]
        out = whole.gather(dim + 1, index.view(shape).expand(wanted))
        return context.wrapped(out.masked_fill(~own.view(shape), 0))


@functools.lru_cache(maxsize=256)
def _index(places: tuple[Place, ...], size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    index, own = ([[empty] * size for _ in places] for empty in (0, False))
    for row, (source, target) in enumerate(places):
        for out_of, into in zip(source, target, strict=True):
            index[row][into], own[row][into] = out_of, True
    # Created on the device: a step that computes on two devices is not recorded.
    return torch.tensor(index, device=device), torch.tensor(own, device=device)


def _front(source: Sequence[int]) -> Place:
    """The positions of a part, moved to the front."""
    return tuple(source), tuple(range(len(source)))


def _cat(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("tensors", "dim"), args, kwargs)
    tensors, dim = list(given["tensors"]), given.get("dim", 0)
    if varied(dim) or len({t.ndim for t in tensors}) > 1:
        return NotImplemented
    d = dim % tensors[0].ndim
    tags = [full(t) for t in tensors]
    rest = [t[:d] + t[d + 1 :] for t in tags]
    if any(r != rest[0] for r in rest):
        return NotImplemented
    out = function(tensors, dim=dim)
    if not any(t[d] for t in tags):
        return mode.result(out, tags[0])
    places, counts = [], []
    for row in range(mode.context.members):
        begin = 0
        own: list[int] = []
        for t, tag in zip(tensors, tags, strict=True):
            own += range(begin, begin + box(t.shape, tag, row)[d])
            begin += t.shape[d]
        places.append(_front(own))
        counts.append(len(own))
    return tagged(moved(mode, out, d, places, max(counts)), (*tags[0][:d], tuple(counts), *tags[0][d + 1 :]))


def _split(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Equal or given parts of a padded dimension."""
    given = arguments(("input", "how", "dim"), args, kwargs)
    x, how, dim = given["input"], given.get("how", given.get("split_size", given.get("chunks"))), given.get("dim", 0)
    if varied(dim) or how is None:
        return NotImplemented
    tag, d = full(x), dim % x.ndim
    if tag[d] is None:
        return NotImplemented if varied(how) else tuple(mode.result(v, tag) for v in function(*args, **kwargs))
    cuts = [_cuts(function.__name__, value_of_each(how, row), n) for row, n in enumerate(tag[d])]
    if len({len(c) for c in cuts}) > 1:
        return NotImplemented
    parts = []
    for ends in zip(*cuts, strict=True):
        counts = tuple(stop - start for start, stop in ends)
        places = [_front(range(start, stop)) for start, stop in ends]
        parts.append(tagged(moved(mode, x, d, places, max(counts)), (*tag[:d], counts, *tag[d + 1 :])))
    return tuple(parts)


def value_of_each(how: Any, row: int) -> Any:
    return [value_of(n, row) for n in how] if isinstance(how, list | tuple) else value_of(how, row)


def _cuts(name: str, how: Any, size: int) -> list[tuple[int, int]]:
    """The boundaries of the parts."""
    if isinstance(how, int):
        step = -(-size // how) if name == "chunk" else how
        return [(i, min(i + step, size)) for i in range(0, size, max(1, step))]
    ends = [sum(how[: i + 1]) for i in range(len(how))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def repacked(
    mode: PaddedMode,
    x: Tensor,
    before: Sequence[Shape],
    after: Sequence[Shape],
    segments: Sequence[tuple[tuple[int, int], tuple[int, int]]],
) -> Tensor:
    """Reshape every member from its shape `before` to `after`, segment by segment.

    Args:
        segments: ranges of dimensions that hold the same entries of each member before and after.
    """
    padded: list[int] = []
    for (i, j), (k, m) in segments:
        # The dimensions of this segment follow those that are done.
        done = len(padded)
        old = tuple(x.shape[done : done + j - i])
        new = tuple(max(a[d] for a in after) for d in range(k, m))
        if any(tuple(b[i:j]) != tuple(a[k:m]) for b, a in zip(before, after, strict=True)) or old != new:
            places = [_walk(old, tuple(b[i:j]), new, tuple(a[k:m])) for b, a in zip(before, after, strict=True)]
            x = x.reshape(*x.shape[:done], math.prod(old), *x.shape[done + j - i :])
            x = moved(mode, x, done, places, math.prod(new))
            x = x.reshape(*x.shape[:done], *new, *x.shape[done + 1 :])
        padded += new
    counts: list[Counts] = list(zip(*after, strict=True))
    return tagged(x, counts)


@functools.lru_cache(maxsize=1024)
def _walk(old: Shape, own_old: Shape, new: Shape, own_new: Shape) -> Place:
    """The positions of a member's entries, in order, in the padded shapes before and after."""
    return tuple(_valid(old, own_old)), tuple(_valid(new, own_new))


def _valid(padded: Shape, own: Shape) -> list[int]:
    flat = torch.arange(math.prod(padded)).view(padded)
    for d, n in enumerate(own):
        flat = flat.narrow(d, 0, n)
    return flat.reshape(-1).tolist()


def packed(mode: PaddedMode, x: Tensor, after: Sequence[Shape]) -> Any:
    """Reshape every member to its own shape; `NotImplemented` if dimensions are ambiguous."""
    before = [box(x.shape, tag_of(x), row) for row in range(mode.context.members)]
    segments = _common_segments(before, after)
    if segments is None:
        return NotImplemented
    return repacked(mode, x, before, after, segments)


def _common_segments(
    before: Sequence[Shape], after: Sequence[Shape]
) -> list[tuple[tuple[int, int], tuple[int, int]]] | None:
    """The shortest ranges of dimensions that hold the same entries before and after, in all members."""
    found = []
    i = k = 0
    ends = len(before[0]), len(after[0])
    while (i, k) != ends:
        fit = next((e for e in _ends(i, k, *ends) if _same(before, after, (i, e[0]), (k, e[1]))), None)
        if fit is None:
            return None
        found.append(((i, fit[0]), (k, fit[1])))
        i, k = fit
    return found


def _ends(i: int, k: int, last_i: int, last_k: int) -> Iterator[tuple[int, int]]:
    """Possible ends of ranges that begin at `i` and `k`, the shortest first."""
    for total in range(i + k + 1, last_i + last_k + 1):
        yield from ((j, total - j) for j in range(i, last_i + 1) if k <= total - j <= last_k)


def _same(before: Sequence[Shape], after: Sequence[Shape], a: tuple[int, int], b: tuple[int, int]) -> bool:
    pairs = zip(before, after, strict=True)
    return all(math.prod(old[slice(*a)]) == math.prod(new[slice(*b)]) for old, new in pairs)


RULES: dict[object, Rule] = {
    **dict.fromkeys(named("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(named("split", "chunk", "split_with_sizes"), _split),
}
