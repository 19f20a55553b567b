"""Which entries of a tensor are padding.

Along every dimension a member's own entries come first and zeros follow. A tag says, per dimension, how many entries
each member has there; a dimension in which all members have as many is not padded. The padded size is always that of
the member that has most, so a tensor that only like members use has no tag and no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hfta_nb.padded.numbers import vary

Counts = tuple[int, ...]
"""Per member of the block under way, the number of its entries along a dimension."""

Tag = tuple[Counts | None, ...]
"""Per dimension, the counts; None where it has no padding."""

_NAME = "_hfta_across"


def tag_of(tensor: Tensor) -> Tag | None:
    """The tag; None for a tensor without padding."""
    found: Tag | None = tensor.__dict__.get(_NAME)
    return found


def tagged(tensor: Tensor, tag: Sequence[Counts | None] | None) -> Tensor:
    """Give a tensor its tag."""
    kept = None if tag is None else tuple(c if c is not None and len(set(c)) > 1 else None for c in tag)
    if kept is not None and any(kept):
        tensor.__dict__[_NAME] = kept
    else:
        tensor.__dict__.pop(_NAME, None)
    return tensor


def full(tensor: Tensor) -> Tag:
    """The tag, or one that says that nothing is padded."""
    return tag_of(tensor) or (None,) * tensor.ndim


def sizes(shape: Sequence[int], tag: Tag | None) -> list[int]:
    """The true sizes: varied numbers where members differ."""
    return [int(n) if tag is None or tag[d] is None else vary(tag[d]) for d, n in enumerate(shape)]  # type: ignore[arg-type]


def box(shape: Sequence[int], tag: Tag | None, row: int) -> tuple[int, ...]:
    """One member's true shape."""
    if tag is None:
        return tuple(shape)
    return tuple(n if c is None else c[row] for n, c in zip(shape, tag, strict=True))


def widened(tensor: Tensor, shape: Sequence[int], skip: int = 1) -> Tensor:
    """The tensor with zeros behind its entries along every dimension behind the first `skip`."""
    missing = [n - m for n, m in zip(shape, tensor.shape[skip:], strict=True)]
    if not any(missing):
        return tensor
    amounts = [v for n in reversed(missing) for v in (0, n)]
    return torch.nn.functional.pad(tensor, amounts, value=False if tensor.dtype == torch.bool else 0)


def rows_of(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Some members' rows; a view where they lie beside each other."""
    if views(rows):
        return tensor[rows[0] : rows[-1] + 1]
    return tensor[list(rows)]


def views(rows: Sequence[int]) -> bool:
    """Whether rows lie beside each other, in order, so that `rows_of` gives a view."""
    return list(rows) == list(range(rows[0], rows[-1] + 1))
