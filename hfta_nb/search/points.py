"""The points of a finite search space."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hfta_nb.records.events import Json
from hfta_nb.search.grid import Integers
from hfta_nb.search.spaces import Space, Uniform, values_of

_MOST = 100_000
"""The most points that are listed."""


def points_of(space: Space) -> int | None:
    """How many configurations there are; None of a space without end, or one that is a function."""
    axes = _listed(space)
    return None if axes is None else math.prod(map(len, axes.values()))


def untried(
    space: Space, known: Collection[str], constraint: Callable[[Mapping[str, Json]], bool] | None, seed: int
) -> dict[str, Any] | None:
    """A configuration at random among those that were not tried and may be; None if there is none, or none is known.

    Args:
        space: the search space.
        known: the configurations that were tried, as JSON.
        constraint: from a configuration to whether it may be tried.
        seed: of the choice.
    """
    axes = _listed(space)
    if axes is None or math.prod(map(len, axes.values())) > _MOST:
        return None
    every = (dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values()))
    left = [one for one in every if json.dumps(one) not in known and (constraint is None or constraint(one))]
    return random.Random(seed).choice(left) if left else None


def _listed(space: Space) -> dict[str, list[Json]] | None:
    """All values of each axis; None where one has no end of them."""
    if callable(space):
        return None
    found = {name: _values(axis) for name, axis in space.items()}
    return None if any(values is None for values in found.values()) else found  # type: ignore[return-value]


def _values(axis: Any) -> list[Json] | None:
    listed = values_of(axis)
    if listed is not None:
        return listed
    if isinstance(axis, Integers):
        return list(axis)
    if isinstance(axis, Uniform) or getattr(axis, "step", None) is None or getattr(axis, "log", False):
        steps = axis.step if isinstance(axis, Uniform) else None
        return None if steps is None else _stepped(axis.low, axis.high, steps)
    return _stepped(axis.low, axis.high, axis.step)


def _stepped(low: Any, high: Any, step: Any) -> list[Json]:
    return [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
