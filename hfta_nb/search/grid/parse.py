"""Parses typed values.

Nothing typed is ever evaluated as code: numbers go through `int` and `float`, and the generator forms
``linspace(a, b, n)``, ``logspace(a, b, n)``, ``integers(a, b)`` and ``seeds(n)`` are matched as text.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Mapping, Sequence

from hfta_nb.errors import GridError
from hfta_nb.records.events import Json
from hfta_nb.search.grid.axes import AxisSpec, check_name, check_values, show
from hfta_nb.search.grid.ranges import Integers, integers, linspace, logspace, seeds

KINDS = ("list", "range", "log range", "integers", "boolean", "choice", "seeds")
"""Kinds of values in a row of the Workbench; `parse_values` reads each."""

HINTS = {
    "list": "8, 16, 32",
    "range": "0.1, 0.9, 5",
    "log range": "1e-4, 1e-1, 4",
    "integers": "1 to 4",
    "boolean": "true, false",
    "choice": "relu, gelu",
    "seeds": "3",
}
"""An example of each kind."""


_CALLS = {
    "linspace": "linspace(0.1, 0.9, 5)",
    "logspace": "logspace(1e-4, 1e-1, 4)",
    "integers": "integers(1, 4)",
    "seeds": "seeds(3)",
}
"""The functions that make a list, each with an example."""

_CALL = re.compile(r"(\w+)\s*\((.*)")
_NUMBERS = re.compile(r"[-+.\deE,\s]*\d[-+.\deE,\s]*\)?")


def parse_values(name: str, kind: str, text: str, spec: AxisSpec | None = None) -> tuple[Json, ...]:
    """The values typed into the field of an axis.

    Args:
        name: the axis, for the message.
        kind: one of `KINDS`.
        text: for example ``1e-3, 3e-3`` (list), ``1e-4, 1e-1, 4`` or ``1e-4 to 1e-1, 4`` (ranges),
            ``1 to 4`` or ``1 to 9 step 2`` (integers), ``3`` or ``1, 5, 7`` (seeds). A list may also be one of
            ``linspace(a, b, n)``, ``logspace(a, b, n)``, ``integers(a, b)`` and ``seeds(n)``.
        spec: what the axis accepts, if known.

    Raises:
        GridError: a part can't be read; the message names the axis, the part and the accepted form.
    """
    check_name(name)
    if kind not in KINDS:
        raise GridError("unknown kind of axis", where=name, got=kind, accepted=", ".join(KINDS))
    if not text.strip():
        raise GridError("no values", where=name, accepted=f"for example {HINTS[kind]}")
    try:
        values = _READERS[kind](text.strip())
    except GridError as error:
        raise error.at(name, f"for example {HINTS[kind]}") from None
    checked = check_values(name, [spec.check_or_none(v) if spec else v for v in values])
    # In a search this is an interval, as the same from code.
    return values if kind == "integers" and isinstance(values, Integers) and checked == values else checked


def parse_axis(text: str, specs: Mapping[str, AxisSpec] | None = None) -> tuple[str, tuple[Json, ...]]:
    """One axis as on a command line: ``lr=1e-3,3e-3`` or ``lr=logspace(1e-4,1e-1,4)``.

    Raises:
        GridError: there is no ``=``, or the name or a value can't be used.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise GridError("no = between name and values", where="grid", got=text, accepted="for example lr=1e-3,3e-3")
    name = check_name(name.strip())
    return name, parse_values(name, "list", values, (specs or {}).get(name))


def parse_scalar(text: str) -> Json:
    """A number, true, false, none, or else the text itself (quotes taken off), such as 30/60."""
    word = text.strip()
    lowered = word.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    if re.fullmatch(r"\d+(/\d+)+", word):  # several whole numbers, which an axis of lists splits
        return word
    with contextlib.suppress(ValueError):
        return int(word)
    try:
        return parse_number(word)
    except GridError:
        if re.match(r"[-+.]?\d", word):  # meant as a number, so raise an error rather than take it as a name
            raise
    return word


_WORDS: dict[str, Json] = {"true": True, "false": False, "none": None}


def parse_number(text: str) -> float:
    """A finite number.

    Raises:
        GridError: the text is none.
    """
    try:
        value = float(text)
    except ValueError:
        hint = "; write 1e-3" if re.search(r"\de[-+]?$", text.lower()) else ""
        if re.search(r"[\d.][\s;]+[-+.\d]", text):
            hint = "; separate values by commas"
        raise GridError(f'"{text}" is not a number{hint}') from None
    if not math.isfinite(value):
        raise GridError(f'"{text}" is not a finite number')
    return value


def parse_whole(text: str) -> int:
    """A whole number.

    Raises:
        GridError: the text is none.
    """
    try:
        return int(text)
    except ValueError:
        raise GridError(f'"{text}" is not a whole number') from None


def _parts(text: str) -> list[str]:
    parts = [p.strip() for p in text.strip().strip("[]").split(",")]
    if parts and not parts[-1]:
        parts.pop()
    if not parts or not all(parts):
        raise GridError("nothing between two commas", got=text.strip())
    return parts


def _read_list(text: str) -> Sequence[Json]:
    call = _CALL.fullmatch(text)
    if call and (call[1] in _CALLS or _NUMBERS.fullmatch(call[2])):
        return _read_call(call[1], call[2], text)
    return [parse_scalar(p) for p in _parts(text)]


def _read_call(name: str, rest: str, text: str) -> Sequence[Json]:
    """The values of ``name(rest``, in which the closing parenthesis may be missing."""
    if name not in _CALLS:
        near = difflib.get_close_matches(name, _CALLS, 1)
        remedy = f"did you mean {near[0]}?" if near else ""
        raise GridError("unknown function", got=name, accepted=", ".join(_CALLS.values()), remedy=remedy)
    example = f"for example {_CALLS[name]}"
    if ")" in rest[:-1]:
        raise GridError(f"nothing may follow {name}(...)", got=text, accepted=example)
    if not rest.endswith(")"):
        raise GridError("no closing parenthesis", got=text, accepted=example)
    readers = {"linspace": _read_range, "logspace": _read_log_range, "integers": _read_integers, "seeds": _read_seeds}
    try:
        return readers[name](rest[:-1].strip())
    except GridError as error:
        raise error.at("", example) from None


def _three(text: str) -> tuple[float, float, int]:
    parts = _parts(re.sub(r"\bto\b|\.\.+", ",", re.sub(r"\bvalues?\b", "", text)))
    if len(parts) != 3:
        raise GridError(
            f"a range is first, last and how many, and this has {len(parts)} of the three", got=text.strip()
        )
    return parse_number(parts[0]), parse_number(parts[1]), parse_whole(parts[2])


def _read_range(text: str) -> Sequence[Json]:
    return linspace(*_three(text))


def _read_log_range(text: str) -> Sequence[Json]:
    return logspace(*_three(text))


def _read_integers(text: str) -> Sequence[Json]:
    match = re.fullmatch(r"(-?\d+)\s*(?:to|\.\.+|,|-)\s*(-?\d+)(?:\s*(?:step|,)\s*(\d+))?", text)
    if match:
        return integers(int(match[1]), int(match[2]), int(match[3] or 1))
    return [parse_whole(p) for p in _parts(text)]


def _read_booleans(text: str) -> Sequence[Json]:
    values = [parse_scalar(p) for p in _parts(text)]
    for value in values:
        if not isinstance(value, bool):
            raise GridError(f'"{show(value)}" is neither true nor false')
    return values


def _read_choices(text: str) -> Sequence[Json]:
    return [p.strip("'\"") for p in _parts(text)]


def _read_seeds(text: str) -> Sequence[Json]:
    numbers = [parse_whole(p) for p in _parts(text)]
    return seeds(numbers[0]) if len(numbers) == 1 else numbers


_READERS = {
    "list": _read_list,
    "range": _read_range,
    "log range": _read_log_range,
    "integers": _read_integers,
    "boolean": _read_booleans,
    "choice": _read_choices,
    "seeds": _read_seeds,
}
