"""What a search may choose: an interval, whole numbers, a list of values, or all of it by a function of the trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError
from hfta_nb.errors.border import FLAG, NUMBER, takes
from hfta_nb.records.events import Json, tuples
from hfta_nb.search import methods
from hfta_nb.search.grid import Integers, check_flat, check_name, configurations

if TYPE_CHECKING:
    from optuna.trial import Trial

Space = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Axes to what they may be, or a function that asks an Optuna trial for values and returns a configuration."""


@dataclass(frozen=True)
class Uniform:
    """An interval of numbers; see `uniform`."""

    low: float
    high: float
    log: bool = False
    step: float | None = None


@takes(SearchError, low=NUMBER, high=NUMBER, log=FLAG, step=NUMBER.or_none)
def uniform(low: float, high: float, *, log: bool = False, step: float | None = None) -> Uniform:
    """An interval of floats, for an axis that is searched.

    Args:
        low, high: the ends, both included.
        log: draw the logarithm uniformly.
        step: only ``low``, ``low + step``, ... are drawn.

    Raises:
        SearchError: the ends are not finite or not in order, or `log` goes with an end below 0 or with `step`.

    Example:
        >>> uniform(1e-4, 1e-1, log=True)
        Uniform(low=0.0001, high=0.1, log=True, step=None)
    """
    numbers = [n for n in (low, high, step) if n is not None]
    if any(isinstance(n, bool) or not isinstance(n, Real) or not math.isfinite(n) for n in numbers):
        raise SearchError("not an interval", where="uniform", got=(low, high, step), accepted="finite numbers")
    if not low < high:
        raise SearchError("the ends are not in order", where="uniform", got=(low, high), accepted="low < high")
    if log and (low <= 0 or step is not None):
        given = f"low={low:g}" if step is None else f"low={low:g}, step={step:g}"
        accepted = "low > 0 and no step"
        raise SearchError(f"no logarithmic interval: {given}", where="uniform", accepted=accepted)
    if step is not None and not 0 < step <= high - low:
        raise SearchError("not a step", where="uniform", got=step, accepted=f"above 0, up to {high - low:g}")
    return Uniform(float(low), float(high), log, None if step is None else float(step))


def is_space(given: Any) -> bool:
    """Whether this can only be searched: a function of a trial, or a mapping with an axis that is no list of values."""
    if isinstance(given, Mapping):
        return any(isinstance(axis, Uniform) or _distribution(axis) for axis in given.values())
    return callable(given) and not isinstance(given, type)


def logarithmic(space: Space) -> set[str]:
    """The axes of a dict whose logarithm is drawn uniformly."""
    return (
        {name for name, axis in space.items() if getattr(axis, "log", False)} if isinstance(space, Mapping) else set()
    )


def suggested(trial: Trial, space: Space, kept_as: Callable[[Any], Any] = lambda choice: choice) -> dict[str, Json]:
    """The configuration of a trial.

    Args:
        trial: Optuna's.
        space: the search space.
        kept_as: how Optuna's storage keeps a choice.

    Raises:
        SearchError: an axis can't be searched, or the function gives something else than a configuration.
    """
    if callable(space):
        found = space(trial)
        if not isinstance(found, Mapping) or not found:
            accepted = "a dict of axes to values"
            raise SearchError("not a configuration", where="the search space's function", got=found, accepted=accepted)
        return configurations(found)[0]
    config: dict[str, Json] = {}
    with methods.any_choices():
        for name, axis in space.items():
            choices = choices_of(axis)
            if choices is None:
                config[name] = _suggested(trial, name, axis)
            else:
                config[name] = tuples(trial.suggest_categorical(name, [kept_as(choice) for choice in choices]))
    return config


def checked(space: Space) -> Space:
    """A space every axis of which can be searched.

    Raises:
        SearchError: one can't.
    """
    if not callable(space):
        check_flat(space)
        space = {name: axis.tolist() if getattr(axis, "ndim", 0) == 1 else axis for name, axis in space.items()}
        for name, axis in space.items():
            check_name(name)
            if not (values_of(axis) or isinstance(axis, Uniform | Integers) or _distribution(axis)):
                accepted = "hfta.uniform(...), hfta.integers(...), a list of values, or a distribution of Optuna's"
                one = isinstance(axis, int | float | str | None)
                remedy = f"one value for all is an argument of the study: {name}={axis!r}" if one else ""
                raise SearchError("can't be searched", where=name, got=axis, accepted=accepted, remedy=remedy)
    return space


def extremes(space: Space) -> dict[str, list[Json]]:
    """For each axis of a dict the values of a list, or both ends of an interval; nothing for a function."""
    if callable(space):
        return {}
    return {name: values_of(axis) or ends_of(axis) for name, axis in space.items()}


def ends_of(axis: Any) -> list[Any]:
    """Both ends of an interval, or the choices of a distribution."""
    if isinstance(axis, Integers):
        return [axis[0], axis[-1]]
    return [tuples(v) for v in axis.choices] if hasattr(axis, "choices") else [axis.low, axis.high]


def _suggested(trial: Trial, name: str, axis: Any) -> Json:
    found: Json
    if isinstance(axis, Integers):
        found = trial.suggest_int(name, axis[0], axis[-1], step=axis.step)
    elif isinstance(axis.low, int):
        found = trial.suggest_int(name, axis.low, axis.high, step=axis.step, log=axis.log)
    else:
        found = trial.suggest_float(name, axis.low, axis.high, step=axis.step, log=axis.log)
    return found


def values_of(axis: Any) -> list[Json] | None:
    """The values of a list; None for anything else."""
    if isinstance(axis, Integers | Uniform | str | Mapping) or not isinstance(axis, Sequence):
        return None
    return [tuples(value) for value in axis]


def choices_of(axis: Any) -> list[Any] | None:
    """The choices of a list or of a categorical distribution, as they were given; None for anything else."""
    if hasattr(axis, "choices"):
        return list(axis.choices)
    return None if values_of(axis) is None else list(axis)


def _distribution(axis: Any) -> bool:
    return hasattr(axis, "to_internal_repr") and hasattr(axis, "single")
