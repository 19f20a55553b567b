"""A finer grid around a member, from the values that its run has on each axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hfta_nb.errors import GridError
from hfta_nb.search.grid import AxisSpec
from hfta_nb.search.intervals import digits, interval_text, is_interval, parse_interval
from hfta_nb.search.spaces import ends_of

_SEEDS = ("seed", "data_seed", "fold")
_FACTOR = 2.0
"""Neighbours whose ratio is at least this are steps of a logarithmic axis."""


def around(config: Mapping[str, Any], axes: Mapping[str, Any], specs: Mapping[str, AxisSpec]) -> dict[str, Any]:
    """The axes of a grid, or of a search, centred on a configuration.

    Args:
        config: the values of the member.
        axes: the values of the run, or the intervals of its search.
        specs: what each axis accepts.
    """
    return {name: _axis(config[name], axes[name], specs[name]) for name in axes if name in config and name in specs}


def _axis(value: Any, known: Any, spec: AxisSpec) -> Any:
    if spec.name in _SEEDS:
        return known
    if not _number(value) or spec.choices:
        return (value,)
    return _narrowed(value, known, spec) if is_interval(known) else _between(value, known, spec)


def _between(value: float, known: Iterable[Any], spec: AxisSpec) -> tuple[Any, ...]:
    """The value, and the middles between it and its neighbours; beyond the last one as far as on the other side."""
    numbers = sorted({v for v in known if _number(v)} | {value})
    place = numbers.index(value)
    below, above = numbers[max(0, place - 1)], numbers[min(len(numbers) - 1, place + 1)]
    log = numbers[0] > 0 and any(b / a >= _FACTOR for a, b in itertools.pairwise(numbers))
    if log:
        down, up = math.sqrt(value / below), math.sqrt(above / value)
        down, up = (up if place == 0 else down), (down if place == len(numbers) - 1 else up)
        found = value / down, value, value * up
    else:
        less, more = (value - below) / 2, (above - value) / 2
        less, more = (more if place == 0 else less), (less if place == len(numbers) - 1 else more)
        found = value - less, value, value + more
    return tuple(sorted({v for v in (value, *map(_rounded(spec), found)) if _fits(v, spec)}))


def _narrowed(value: float, known: Any, spec: AxisSpec) -> Any:
    """The third of the interval that has the value in its middle, as far as it lies in the interval."""
    (kind, _), (low, high) = interval_text(known), ends_of(known)
    if kind == "log interval":
        factor = (high / low) ** (1 / 6)
        ends = max(low, value / factor), min(high, value * factor)
    else:
        ends = max(low, value - (high - low) / 6), min(high, value + (high - low) / 6)
    first, last = map(_rounded(spec), ends)
    if not first < last:
        return (value,)
    return parse_interval(spec.name, kind, f"{digits(first)} to {digits(last)}", spec)


def _rounded(spec: AxisSpec) -> Any:
    return round if spec.type == "int" else lambda v: float(f"{v:.3g}")


def _fits(value: Any, spec: AxisSpec) -> bool:
    try:
        spec.check(value)
    except GridError:
        return False
    return True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
