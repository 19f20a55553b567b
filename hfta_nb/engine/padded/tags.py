"""Tags, which record the entries of a tensor that are padding.

Along every dimension, a member's own entries come first and zeros follow. A tag holds for each dimension the number of
entries of each member; a dimension in which all members have the same number is not padded. The padded size is always
that of the largest member, so a tensor used only by members of equal size has no tag and no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hfta_nb.engine.padded.member_numbers import vary

Counts = tuple[int, ...]
"""The number of entries along a dimension, per member of the active block."""

Tag = tuple[Counts | None, ...]
"""Per dimension, the counts; None for a dimension without padding."""

_NAME = "_hfta_across"


def tag_of(tensor: Tensor) -> Tag | None:
    """The tag; None for a tensor without padding."""
    found: Tag | None = tensor.__dict__.get(_NAME)
    return found


def tagged(tensor: Tensor, tag: Sequence[Counts | None] | None) -> Tensor:
    """Set the tag of a tensor."""
    kept = None if tag is None else tuple(c if c is not None and len(set(c)) > 1 else None for c in tag)
    if kept is not None and any(kept):
        tensor.__dict__[_NAME] = kept
    else:
        tensor.__dict__.pop(_NAME, None)
    return tensor


def full(tensor: Tensor) -> Tag:
    """The tag, or one without padding."""
    return tag_of(tensor) or (None,) * tensor.ndim


def sizes(shape: Sequence[int], tag: Tag | None) -> list[int]:
    """The true sizes; varied numbers if members differ."""
    return [int(n) if tag is None or tag[d] is None else vary(tag[d]) for d, n in enumerate(shape)]  # type: ignore[arg-type]


def box(shape: Sequence[int], tag: Tag | None, row: int) -> tuple[int, ...]:
    """One member's true shape."""
    if tag is None:
        return tuple(shape)
    return tuple(n if c is None else c[row] for n, c in zip(shape, tag, strict=True))


def widened(tensor: Tensor, shape: Sequence[int], skip: int = 1) -> Tensor:
    """The tensor with zeros appended along every dimension after the first `skip`."""
    missing = [n - m for n, m in zip(shape, tensor.shape[skip:], strict=True)]
    if not any(missing):
        return tensor
    amounts = [v for n in reversed(missing) for v in (0, n)]
    return torch.nn.functional.pad(tensor, amounts, value=False if tensor.dtype == torch.bool else 0)


def rows_of(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Some members' rows; a view if they are adjacent."""
    if views(rows):
        return tensor[rows[0] : rows[-1] + 1]
    # Its gradient is added row by row; that of ``tensor[rows]`` would be sorted and added entry by entry.
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


def views(rows: Sequence[int]) -> bool:
    """True if rows are adjacent and in order, so that `rows_of` returns a view."""
    return list(rows) == list(range(rows[0], rows[-1] + 1))
