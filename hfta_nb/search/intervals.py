"""Intervals as a person types them: ``1e-4 to 1e-1``, ``8 to 64 step 8``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hfta_nb.errors import GridError, SearchError
from hfta_nb.search import methods
from hfta_nb.search.grid import AxisSpec, Integers, check_name, integers
from hfta_nb.search.grid.parse import parse_number, parse_whole
from hfta_nb.search.spaces import ends_of, uniform

KINDS = ("interval", "log interval")
"""Kinds of an axis of which a search draws any value between two ends; `parse_interval` reads each."""

_APART = re.compile(r"\s*(?:,|\.\.+|\bto\b|\bstep\b)\s*")


def is_interval(axis: Any) -> bool:
    """Whether this axis of a search has two ends instead of a list of values."""
    return isinstance(axis, Integers) or hasattr(axis, "low")


def parse_interval(name: str, kind: str, text: str, spec: AxisSpec) -> Any:
    """The interval typed into the field of an axis; one of whole numbers where the axis takes these.

    Args:
        name: the axis, for the message.
        kind: one of `KINDS`.
        text: for example ``1e-4 to 1e-1``, or ``0.1 to 0.9 step 0.2``; ``1e-4, 1e-1`` says the same.
        spec: what the axis accepts.

    Raises:
        GridError: a part can't be read, or the parts make no interval; the message says which.
    """
    check_name(name)
    log, whole = kind == "log interval", spec.type == "int"
    example = hint(kind, spec)
    read: Callable[[str], Any] = parse_whole if whole else parse_number
    try:
        parts = [read(part) for part in _APART.split(text.strip()) if part]
        if not parts:
            raise GridError("no interval")
        if not 2 <= len(parts) <= (2 if log else 3):
            raise GridError("an interval is a first and a last number", got=text.strip())
        found = _made(parts, log, whole)
    except SearchError as error:
        raise GridError(error.what, where=name, got=text.strip(), accepted=error.accepted) from None
    except GridError as error:
        raise error.at(name, f"for example {example}") from None
    return accepted(found, spec)


def accepted(axis: Any, spec: AxisSpec) -> Any:
    """An axis's values in its type, or its interval, whose ends are checked.

    Raises:
        GridError: the axis does not take a value.
    """
    if not is_interval(axis):
        return [spec.check_or_none(value) for value in axis]
    for end in ends_of(axis):
        spec.check(end)
    return axis


def interval_text(axis: Any) -> tuple[str, str]:
    """The kind and the text of an interval, with which `parse_interval` gives it again."""
    low, high = ends_of(axis)
    step = getattr(axis, "step", None) or 0
    usual = 1 if isinstance(low, int) else 0  # Optuna's steps of whole numbers begin at 1
    kind = KINDS[bool(getattr(axis, "log", False))]
    return kind, f"{digits(low)} to {digits(high)}" + ("" if step == usual else f" step {digits(step)}")


def hint(kind: str, spec: AxisSpec) -> str:
    """An example of an interval of this axis."""
    if spec.type == "int":
        return "8 to 64"
    return "1e-4 to 1e-1" if kind == "log interval" else "0.1 to 0.9"


def _made(parts: list[Any], log: bool, whole: bool) -> Any:
    low, high = parts[:2]
    if not low < high:
        raise GridError("the ends are not in order", got=f"{digits(low)} to {digits(high)}")
    if not whole:
        return uniform(low, high, log=log, step=parts[2] if len(parts) == 3 else None)
    if not log:
        return integers(*parts)
    if low < 1:
        raise GridError(f"no logarithmic interval: low={low}")
    return methods.optuna().distributions.IntDistribution(low, high, log=True)


def digits(value: float) -> str:
    """A number as typed, with every digit."""
    short = str(value) if isinstance(value, int) else f"{value:g}"
    return short if float(short) == value else repr(value)
