"""Which rows of a mini-batch a rank computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.errors import DistributedError


def sizes_of(samples: int, ranks: int) -> list[int]:
    """How many samples each rank takes: even shares in order, the first ranks one more where they don't divide."""
    each, more = divmod(samples, ranks)
    return [each + (rank < more) for rank in range(ranks)]


def samples_in(x: Any) -> int:
    """N of a mini-batch.

    Raises:
        DistributedError: there is no tensor in it, or none with samples.
    """
    first = next((v for v in flatten(x)[0] if isinstance(v, Tensor | PerMember)), None)
    shape = () if first is None else _shape(first)
    if not shape or not shape[0]:
        raise DistributedError("no samples in the input", where="x", got=type(x).__name__)
    return int(shape[0])


def bounds(rank: int, sizes: Sequence[int]) -> tuple[int, int]:
    """From where to where a rank's rows go. One that has none computes the first row, which then does not count."""
    start = sum(sizes[:rank])
    return (start, start + sizes[rank]) if sizes[rank] else (0, 1)


def share(tree: Any, rank: int, sizes: Sequence[int]) -> Any:
    """A rank's rows of every tensor.

    Raises:
        DistributedError: a tensor has another number of rows.
    """
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [_rows(v, rank, sizes) if isinstance(v, Tensor | PerMember) else v for v in leaves])


def _rows(value: Tensor | PerMember, rank: int, sizes: Sequence[int]) -> Any:
    shape = _shape(value)
    if not shape or shape[0] != sum(sizes):
        raise DistributedError(
            "an input without a row per sample can't be shared out",
            where="x",
            got=list(shape),
            accepted=f"[{sum(sizes)}, ...]",
        )
    start, stop = bounds(rank, sizes)
    return per_member(value.value[:, start:stop]) if isinstance(value, PerMember) else value[start:stop]


def _shape(value: Tensor | PerMember) -> tuple[int, ...]:
    return tuple(value.value.shape[1:] if isinstance(value, PerMember) else value.shape)
