"""Grids as other packages write them: scikit-learn's list of grids, and nested dicts with their flat form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hfta_nb.errors import GridError
from hfta_nb.search.grid.ranges import MAX_VARIANTS

_NAMES = ("name", "type", "class", "cls", "_target_")
"""Keys of a nested dict whose value is what the dict's own name stands for."""

_DRAWN = ("distribution", "method", "metric", "log", "q")
"""Keys that say how a value is drawn, beside "values" or "min" and "max"."""


def products(given: Any) -> Iterator[dict[str, Any]] | None:
    """The configurations of scikit-learn's list of grids, each a dict of lists; None for anything else."""
    grids = given if isinstance(given, list) else []
    if not grids or not all(isinstance(grid, Mapping) and grid and all(map(_several, grid.values())) for grid in grids):
        return None
    each = (dict(zip(grid, values, strict=True)) for grid in grids for values in itertools.product(*grid.values()))
    return itertools.islice(each, MAX_VARIANTS + 1)


def _several(value: Any) -> bool:
    """True for a list of values; a tuple is one value."""
    return isinstance(value, list | range) or (hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0)


def check_flat(grid: Mapping[Any, Any]) -> None:
    """Check that a grid or a search space has no dicts within.

    Raises:
        GridError: it has; the message has the flat form.
    """
    for name, value in grid.items():
        nested = isinstance(value, Mapping)
        if nested or (isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value)):
            remedy = f"written flat: {_shown(flat(grid))}"
            raise GridError(
                "a dict within a grid",
                where=str(name),
                got=value,
                accepted="names of axes to values, at one level",
                remedy=remedy if nested else f"one dict per choice: {_shown([flat({name: v}) for v in value])}",
            )


def bare_name(name: str) -> str:
    """The last part of a name such as ``optimizer__lr`` or ``model.width``."""
    return re.split(r"__|[./]", name)[-1]


def flat(grid: Mapping[Any, Any], outer: str = "") -> dict[str, Any]:
    """A nested grid at one level, under the innermost names."""
    inner = grid.get("parameters")
    if isinstance(inner, Mapping) and not outer:  # as in a sweep of Weights & Biases
        return flat(inner)
    found: dict[str, Any] = {}
    for key, value in grid.items():
        name = outer if str(key) in _NAMES and outer else bare_name(str(key))
        found |= {name: value} if not isinstance(value, Mapping) else _within(name, value)
    return found


def _within(name: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    left = {key: v for key, v in value.items() if key not in (*_DRAWN, "type")}
    if set(left) in ({"values"}, {"value"}, {"grid_search"}):
        return {name: next(iter(left.values()))}
    if set(left) in ({"min", "max"}, {"low", "high"}):
        low, high = left.values()
        log = ", log=True" if any("log" in str(v) for v in value.values()) else ""
        whole = isinstance(low, int) and isinstance(high, int) and not log
        return {name: _Code(f"hfta_nb.{'integers' if whole else 'uniform'}({low}, {high}{log})")}
    return flat(value, name)


class _Code(str):
    """Is shown without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
