"""Ranges of values: evenly spaced numbers, whole numbers, seeds."""

from __future__ import annotations

import math
import numbers
import operator

from hfta_nb.errors import GridError
from hfta_nb.errors.border import NUMBER, WHOLE, takes

MAX_VARIANTS = 10_000
"""A larger grid is probably a typing mistake."""


@takes(GridError, start=NUMBER, stop=NUMBER, count=WHOLE)
def linspace(start: float, stop: float, count: int) -> tuple[float, ...]:
    """`count` evenly spaced numbers from `start` to `stop`, both included."""
    _check_range(start, stop, count)
    if count == 1:
        return (float(start),)
    return tuple(_tidy(start + (stop - start) * i / (count - 1)) for i in range(count))


@takes(GridError, start=NUMBER, stop=NUMBER, count=WHOLE)
def logspace(start: float, stop: float, count: int) -> tuple[float, ...]:
    """`count` numbers from `start` to `stop`, both included, each the same multiple of the one before.

    Unlike `numpy.logspace`, the ends are the numbers themselves, not their exponents.
    """
    _check_range(start, stop, count)
    if start <= 0 or stop <= 0:
        raise GridError("a log range needs ends above 0", got=(start, stop), accepted="for example 1e-4, 1e-1, 4")
    return tuple(_tidy(10.0**e) for e in _spaced(math.log10(start), math.log10(stop), count))


def _spaced(start: float, stop: float, count: int) -> list[float]:
    return [start] if count == 1 else [start + (stop - start) * i / (count - 1) for i in range(count)]


class Integers(tuple[int, ...]):
    """Whole numbers at equal distances, which a search takes for an interval rather than for a list."""

    step: int


@takes(GridError, start=WHOLE, stop=WHOLE, step=WHOLE)
def integers(start: int, stop: int, step: int = 1) -> Integers:
    """The whole numbers from `start` to `stop`, both included, `step` apart."""
    if not all(map(_whole, (start, stop, step))) or step < 1 or stop < start:
        raise GridError("not a range of whole numbers", got=(start, stop, step), accepted="start <= stop and step >= 1")
    _check_count((stop - start) // step + 1)
    found = Integers(range(start, stop + 1, step))
    found.step = step
    return found


@takes(GridError, count=WHOLE, start=WHOLE)
def seeds(count: int, start: int = 0) -> tuple[int, ...]:
    """`count` consecutive seeds."""
    _check_count(count)
    return tuple(range(start, start + count))


def _whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _check_range(start: float, stop: float, count: int) -> None:
    if not (isinstance(start, numbers.Real) and isinstance(stop, numbers.Real)):
        raise GridError("the ends of a range must be numbers", got=(start, stop))
    if not (math.isfinite(start) and math.isfinite(stop)):
        raise GridError("the ends of a range must be finite", got=(start, stop))
    _check_count(count)


def _check_count(count: int) -> None:
    if not _whole(count):
        raise GridError("not a number of values", got=count, accepted=f"a whole number from 1 to {MAX_VARIANTS}")
    if not 1 <= operator.index(count) <= MAX_VARIANTS:
        raise GridError("a range has too few or too many values", got=count, accepted=f"1 to {MAX_VARIANTS}")


def _tidy(value: float) -> float:
    # 12 digits: 10 ** -3 computed by logarithms must be shown as 0.001.
    return float(f"{value:.12g}")
