"""Axes to ordered variants, and the parsing of what a person types.

Nothing typed is ever evaluated as code: numbers go through `int` and `float`, and the three
generator forms ``linspace(a, b, n)``, ``logspace(a, b, n)`` and ``integers(a, b)`` are matched as text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfta_nb.errors import GridError
from hfta_nb.events import Json, tuples

MAX_VARIANTS = 10_000
"""A grid beyond this is a typing mistake more often than a wish."""

KINDS = ("list", "range", "log range", "integers", "boolean", "choice", "seeds")
"""How a row of the Workbench may describe its values; `parse_values` reads each."""

HINTS = {
    "list": "8, 16, 32",
    "range": "0.1, 0.9, 5",
    "log range": "1e-4, 1e-1, 4",
    "integers": "1 to 4",
    "boolean": "true, false",
    "choice": "relu, gelu",
    "seeds": "3",
}
"""An example of what each kind reads."""


@dataclass(frozen=True)
class AxisSpec:
    """What an axis accepts: made from a signature, or one of the training axes.

    Attributes:
        name: the axis.
        type: "float", "int", "bool", "str" or "any".
        default: the value when the axis is not in the grid.
        choices: the only values accepted, if any.
        low, high: inclusive bounds for numbers; None for none.
        help: one sentence for a tooltip.
        fusible: whether values that differ always train in one array (a hyperparameter of the
            optimizer, say); otherwise it depends on what the value does to the module.
    """

    name: str
    type: str = "any"
    default: Json = None
    choices: tuple[Json, ...] = ()
    low: float | None = None
    high: float | None = None
    help: str = ""
    fusible: bool = False

    def check(self, value: Json) -> Json:
        """The value in this axis's type.

        Raises:
            GridError: it is of another type, out of bounds or not a choice.
        """
        if self.choices:
            for choice in self.choices:
                if type(choice) is type(value) and choice == value:
                    return choice
            raise GridError("not a choice", where=self.name, got=value, accepted=", ".join(map(show, self.choices)))
        if self.type in ("float", "int"):
            value = self._number(value)
        elif self.type == "bool" and not isinstance(value, bool):
            raise GridError("not a boolean", where=self.name, got=value, accepted="true, false")
        elif self.type == "str" and not isinstance(value, str):
            value = show(value)
        return value

    def _number(self, value: Json) -> float | int:
        whole = self.type == "int"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GridError(
                "not a number", where=self.name, got=value, accepted="whole numbers" if whole else "numbers"
            )
        if whole and value != int(value):
            raise GridError("not a whole number", where=self.name, got=value, accepted="whole numbers")
        value = int(value) if whole else float(value)
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise GridError("out of bounds", where=self.name, got=value, accepted=self._bounds())
        return value

    def _bounds(self) -> str:
        low = "" if self.low is None else f"at least {self.low:g}"
        high = "" if self.high is None else f"at most {self.high:g}"
        return " and ".join(filter(None, [low, high]))


@dataclass(frozen=True)
class Variant:
    """A configuration and a seed: one thing to train.

    Attributes:
        id: its place in the grid, from 0.
        config: one value per axis of the grid.
        seed: the seed of its initialisation and of every number that it draws.
    """

    id: int
    config: dict[str, Json] = field(hash=False)
    seed: int = 0

    @property
    def label(self) -> str:
        """For example ``#3 lr=0.001, width=16``."""
        return f"#{self.id} " + ", ".join(f"{k}={show(v)}" for k, v in self.config.items())


class Grid:
    """Named axes, each with its values, and the variants that are their product.

    The first axis varies slowest. An axis named "seed" gives the variants their seeds.

    Args:
        axes: name to values; a single value is an axis of one. See `linspace`, `logspace`, `integers`
            and `seeds` for values that need not be written out.

    Raises:
        GridError: a name or a value can't be used, an axis is empty or has a value twice, or the
            grid is larger than `MAX_VARIANTS`.

    Example:
        >>> [v.label for v in Grid({"lr": logspace(1e-3, 1e-2, 2), "width": [8]}).variants()]
        ['#0 lr=0.001, width=8', '#1 lr=0.01, width=8']
    """

    def __init__(self, axes: Mapping[str, Any] | Grid | None = None) -> None:
        given = axes.axes if isinstance(axes, Grid) else dict(axes or {})
        self.axes: dict[str, tuple[Json, ...]] = {
            check_name(name): _check_values(name, values) for name, values in given.items()
        }
        size = len(self)
        if size > MAX_VARIANTS:
            counts = " x ".join(f"{len(v)} {k}" for k, v in self.axes.items())
            raise GridError(
                "too many variants", where="grid", got=size, accepted=f"up to {MAX_VARIANTS}", remedy=f"it is {counts}"
            )

    def __len__(self) -> int:
        return math.prod(len(v) for v in self.axes.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and list(self.axes.items()) == list(other.axes.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Grid({self.axes!r})"

    def variants(self) -> list[Variant]:
        """All variants in order; an empty grid has one, with the defaults."""
        found = []
        for number, values in enumerate(itertools.product(*self.axes.values())):
            config = dict(zip(self.axes, values, strict=True))
            found.append(Variant(number, config, _seed_of(config)))
        return found


def linspace(start: float, stop: float, count: int) -> tuple[float, ...]:
    """`count` evenly spaced numbers from `start` to `stop`, both included."""
    _check_range(start, stop, count)
    if count == 1:
        return (float(start),)
    return tuple(_tidy(start + (stop - start) * i / (count - 1)) for i in range(count))


def logspace(start: float, stop: float, count: int) -> tuple[float, ...]:
    """`count` numbers from `start` to `stop`, both included, each the same multiple of the one before.

    Unlike `numpy.logspace`, the ends are the numbers themselves, not their exponents.
    """
    _check_range(start, stop, count)
    if start <= 0 or stop <= 0:
        raise GridError("a log range needs ends above 0", got=(start, stop), accepted="for example 1e-4, 1e-1, 4")
    return tuple(_tidy(10.0**e) for e in linspace_exact(math.log10(start), math.log10(stop), count))


def linspace_exact(start: float, stop: float, count: int) -> list[float]:
    return [start] if count == 1 else [start + (stop - start) * i / (count - 1) for i in range(count)]


def integers(start: int, stop: int, step: int = 1) -> tuple[int, ...]:
    """The whole numbers from `start` to `stop`, both included, `step` apart."""
    if step < 1 or stop < start:
        raise GridError("not a range of whole numbers", got=(start, stop, step), accepted="start <= stop and step >= 1")
    return tuple(range(start, stop + 1, step))


def seeds(count: int, start: int = 0) -> tuple[int, ...]:
    """`count` seeds, one after another."""
    if count < 1:
        raise GridError("no seeds", got=count, accepted="at least 1")
    return tuple(range(start, start + count))


def show(value: Json) -> str:
    """A value as a person would type it: few digits, ``true`` rather than ``True``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(show(v) for v in value) + ")"
    return "none" if value is None else str(value)


def check_name(name: object) -> str:
    """The name of an axis, which must be a Python identifier."""
    if not isinstance(name, str) or not name.isidentifier():
        raise GridError(
            "not a name for an axis",
            where="grid",
            got=name,
            accepted="letters, digits and _, not starting with a digit",
        )
    return name


_CALL = re.compile(r"(linspace|logspace|integers|seeds)\s*\(([^()]*)\)")


def parse_values(name: str, kind: str, text: str, spec: AxisSpec | None = None) -> tuple[Json, ...]:
    """What a person typed into the field of an axis, as values.

    Args:
        name: the axis, for the message.
        kind: one of `KINDS`.
        text: for example ``1e-3, 3e-3`` (list), ``1e-4, 1e-1, 4`` or ``1e-4 to 1e-1, 4`` (ranges),
            ``1 to 4`` or ``1 to 9 step 2`` (integers), ``3`` or ``1, 5, 7`` (seeds). A list may also be one of
            ``linspace(a, b, n)``, ``logspace(a, b, n)``, ``integers(a, b)`` and ``seeds(n)``.
        spec: what the axis accepts, where that is known.

    Raises:
        GridError: with the axis, the part that can't be read, and how to write it.
    """
    check_name(name)
    if kind not in KINDS:
        raise GridError("unknown kind of axis", where=name, got=kind, accepted=", ".join(KINDS))
    if not text.strip():
        raise GridError("no values", where=name, accepted=f"for example {HINTS[kind]}")
    try:
        values = _READERS[kind](text.strip())
    except GridError as error:
        raise GridError(error.what, where=name, accepted=error.accepted or f"for example {HINTS[kind]}") from None
    return _check_values(name, [spec.check(v) if spec else v for v in values])


def parse_axis(text: str, specs: Mapping[str, AxisSpec] | None = None) -> tuple[str, tuple[Json, ...]]:
    """One axis as on a command line: ``lr=1e-3,3e-3`` or ``lr=logspace(1e-4,1e-1,4)``.

    Raises:
        GridError: there is no ``=``, or what stands beside it can't be used.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise GridError("no = between name and values", where="grid", got=text, accepted="for example lr=1e-3,3e-3")
    name = check_name(name.strip())
    return name, parse_values(name, "list", values, (specs or {}).get(name))


def parse_scalar(text: str) -> Json:
    """A number, true, false, none, or else the text itself (quotes taken off)."""
    word = text.strip()
    lowered = word.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return _number(word)
    except GridError:
        if re.match(r"[-+.]?\d", word):  # meant as a number, so say so rather than take it as a name
            raise
    return word


_WORDS: dict[str, Json] = {"true": True, "false": False, "none": None}


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        hint = "; write 1e-3" if re.search(r"\de[-+]?$", text.lower()) else ""
        raise GridError(f'"{text}" is not a number{hint}') from None
    if not math.isfinite(value):
        raise GridError(f'"{text}" is not a finite number')
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise GridError(f'"{text}" is not a whole number') from None


def _parts(text: str) -> list[str]:
    parts = [p.strip() for p in text.strip().strip("[]").split(",")]
    if parts and not parts[-1]:
        parts.pop()
    if not parts or not all(parts):
        raise GridError("nothing between two commas")
    return parts


def _read_list(text: str) -> Sequence[Json]:
    call = _CALL.fullmatch(text)
    if call:
        readers = {
            "linspace": _read_range,
            "logspace": _read_log_range,
            "integers": _read_integers,
            "seeds": _read_seeds,
        }
        return readers[call[1]](call[2])
    return [parse_scalar(p) for p in _parts(text)]


def _three(text: str) -> tuple[float, float, int]:
    parts = _parts(re.sub(r"\bto\b|\.\.+", ",", re.sub(r"\bvalues?\b", "", text)))
    if len(parts) != 3:
        raise GridError(f"a range is first, last and how many, and this has {len(parts)} of the three")
    return _number(parts[0]), _number(parts[1]), _whole(parts[2])


def _read_range(text: str) -> Sequence[Json]:
    return linspace(*_three(text))


def _read_log_range(text: str) -> Sequence[Json]:
    return logspace(*_three(text))


def _read_integers(text: str) -> Sequence[Json]:
    match = re.fullmatch(r"(-?\d+)\s*(?:to|\.\.+|,|-)\s*(-?\d+)(?:\s*(?:step|,)\s*(\d+))?", text)
    if match:
        return integers(int(match[1]), int(match[2]), int(match[3] or 1))
    return [_whole(p) for p in _parts(text)]


def _read_booleans(text: str) -> Sequence[Json]:
    values = [parse_scalar(p) for p in _parts(text)]
    for value in values:
        if not isinstance(value, bool):
            raise GridError(f'"{show(value)}" is neither true nor false')
    return values


def _read_choices(text: str) -> Sequence[Json]:
    return [p.strip("'\"") for p in _parts(text)]


def _read_seeds(text: str) -> Sequence[Json]:
    numbers = [_whole(p) for p in _parts(text)]
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


def _check_range(start: float, stop: float, count: int) -> None:
    if not (math.isfinite(start) and math.isfinite(stop)):
        raise GridError("the ends of a range must be finite", got=(start, stop))
    if count < 1 or count > MAX_VARIANTS:
        raise GridError("a range has too few or too many values", got=count, accepted=f"1 to {MAX_VARIANTS}")


def _tidy(value: float) -> float:
    # 12 digits: 10 ** -3 computed by logarithms must read 0.001, and no sweep tells such neighbours apart.
    return float(f"{value:.12g}")


def _check_values(name: str, values: Any) -> tuple[Json, ...]:
    if isinstance(values, str | int | float) or values is None:
        values = (values,)
    elif not isinstance(values, Iterable):
        raise GridError("not a list of values", where=name, got=values)
    checked = tuple(_check_value(name, v) for v in values)
    if not checked:
        raise GridError("no values", where=name, remedy="give at least one, or leave the axis out")
    seen: list[Json] = []
    for value in checked:
        if any(type(value) is type(other) and value == other for other in seen):
            raise GridError(f"{show(value)} is given twice", where=name, remedy="to repeat a run, sweep the axis seed")
        seen.append(value)
    return checked


def _check_value(name: str, value: Any) -> Json:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy or torch scalar
        value = value.item()
    value = tuples(value)
    flat: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    for part in flat:
        if isinstance(part, float) and not math.isfinite(part):
            raise GridError("not a finite number", where=name, got=value)
        if not (part is None or isinstance(part, bool | int | float | str | tuple)):
            raise GridError(
                "not a plain value",
                where=name,
                got=value,
                accepted="numbers, booleans, strings, None and tuples of these",
                remedy="name the alternatives by strings and choose by name in the build function",
            )
    return value  # type: ignore[no-any-return]


def _seed_of(config: Mapping[str, Json]) -> int:
    seed = config.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise GridError("not a seed", where="seed", got=seed, accepted="whole numbers from 0")
    return seed
