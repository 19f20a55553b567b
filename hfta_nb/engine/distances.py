"""How far two tensors are from each other: by member, in the largest entry, by norm, and along what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from hfta_nb.engine.equality import same_entries

_STORED = 2.0
"""Of a value that changes, so many last bits are the rounding of what is stored, however small the change is."""


class Change(NamedTuple):
    """A tensor that a run changes, whose change is compared: beside what was there before it may be small.

    Attributes:
        before, after: the run.
    """

    before: Tensor
    after: Tensor


class Measured(NamedTuple):
    """How far two tensors are from each other.

    Attributes:
        off: by row, the largest difference; infinite where one of two entries is not finite.
        size: by row, the largest finite value that is expected.
        apart: by row, the Euclidean norm of the difference.
        along: by row, the norm of the difference's projection on what is expected, which a factor changes and
            rounding of many entries hardly does.
        length: by row, the norm of what is expected.
        finite: all that is expected is finite.
    """

    off: Sequence[float]
    size: Sequence[float]
    apart: Sequence[float]
    along: Sequence[float]
    length: Sequence[float]
    finite: bool = True

    @property
    def differences(self) -> Sequence[float]:
        """All measures, of each row: none sees all that the others do."""
        return *self.off, *self.apart, *self.along

    @property
    def scales(self) -> Sequence[float]:
        """What `differences` are compared with."""
        return *self.size, *self.length, *self.length


@torch.no_grad()
def measure(pairs: Sequence[tuple[Tensor | Change, Tensor | Change]], members: int = 0) -> list[Measured]:
    """How far the first tensor of each pair is from the second one, with few waits for the device.

    Args:
        pairs: of one shape and dtype each.
        members: see `compare`.
    """
    bounds: list[Tensor] = []
    for found, expected in pairs:
        away, value = _away(found, expected, members)
        bounds += _measures(away, value)
    values = _listed(bounds)
    result = []
    for i, (found, expected) in enumerate(pairs):
        off, size, *norms = values[5 * i : 5 * i + 5]
        finite = all(map(isfinite, size))
        if not finite or not all(map(isfinite, off)):
            off, size, *norms = _listed(_measures(*_without_infinite(found, expected, members)))
        apart, along, length = norms
        result.append(Measured(off, size, apart, along, length, finite))
    return result


def _measures(away: Tensor, value: Tensor) -> list[Tensor]:
    """What `Measured` has, of a difference and what is expected, by row."""
    size, off = (v.abs().amax(1).double() if v.numel() else v.new_zeros(len(v)).abs().double() for v in (value, away))
    length, apart = _norm(value), _norm(away)
    unit = value / length.clamp(min=torch.finfo(value.dtype).tiny).to(value.dtype)[:, None]  # so no product overflows
    along = (unit.conj() * away).sum(1, dtype=torch.complex128 if away.is_complex() else torch.float64).abs()
    return [off, size, apart, along, length]


def _norm(rows: Tensor) -> Tensor:
    dtype = torch.complex128 if rows.is_complex() else torch.float64  # in which no square overflows
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
    return found


def _away(found: Tensor | Change, expected: Tensor | Change, members: int) -> tuple[Tensor, Tensor]:
    """The difference of two values, and the expected one, by row."""
    if isinstance(found, Change) and isinstance(expected, Change):
        began, ended, before, after = (_rows(t, members) for t in (*found, *expected))
        stored = _STORED * torch.finfo(expected.after.dtype).eps * after.abs()
        away = (ended - after) - (began - before)
        return away - away.clamp(-stored, stored), after - before
    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)  # both are changes, or neither
    return _rows(found, members) - _rows(expected, members), _rows(expected, members)


def _without_infinite(found: Tensor | Change, expected: Tensor | Change, members: int) -> tuple[Tensor, Tensor]:
    """As `_away`, where some entries are not finite: such as are the same in both do not differ."""
    away, value = _away(found, expected, members)
    a, b = (_rows(v.after if isinstance(v, Change) else v, members) for v in (found, expected))
    away = torch.where(same_entries(a, b), 0.0, away.abs()).nan_to_num(nan=inf, posinf=inf)
    return away, torch.where(value.isfinite(), value.abs(), 0.0)


def _rows(tensor: Tensor, members: int) -> Tensor:
    """A tensor as a matrix of one row per member, or of one row."""
    count = members if members and tensor.ndim and len(tensor) == members else 1
    return _wide(tensor.detach()).reshape(count, -1)


def _wide(tensor: Tensor) -> Tensor:
    """In a dtype in which the difference of two values is a number."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _listed(bounds: Sequence[Tensor]) -> list[list[float]]:
    """Vectors as lists, by one transfer from each device."""
    found: list[list[float]] = [[] for _ in bounds]
    for device in {bound.device for bound in bounds}:
        places = [i for i, bound in enumerate(bounds) if bound.device == device]
        values = iter(torch.cat([bounds[i] for i in places]).tolist())
        for i in places:
            found[i] = [next(values) for _ in range(len(bounds[i]))]
    return found
