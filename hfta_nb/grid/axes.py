"""Axes to ordered variants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from hfta_nb.errors import GridError
from hfta_nb.events import Json, tuples

MAX_VARIANTS = 10_000
"""A grid beyond this is a typing mistake more often than a wish."""


@dataclass(frozen=True)
class Bounds:
    """What numbers a parameter takes, beside its type: ``width: Annotated[int, Bounds(low=1)]``.

    Attributes:
        low, high: inclusive; None for none.
        above: exclusive; None for none.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None


Size = Annotated[int, Bounds(1, 1_000_000)]
"""A width or a count: far beyond what a layer can have, yet within what torch can count elements of."""

Depth = Annotated[int, Bounds(1, 10_000)]
Layers = Annotated[int, Bounds(0, 10_000)]
"""Numbers of layers, without and with 0: each is an object, so that a typing mistake would take hours to build."""

Factor = Annotated[float, Bounds(high=1_000, above=0)]
"""Of a width."""


@dataclass(frozen=True)
class AxisSpec:
    """What an axis accepts: made from a signature, or one of the training axes.

    Attributes:
        name: the axis.
        type: "float", "int", "bool", "str" or "any".
        default: the value when the axis is not in the grid.
        choices: the only values accepted, if any.
        low, high: inclusive bounds for numbers; None for none.
        above: an exclusive one; None for none.
        aliases: by another way to write a choice (in lower case, without underscores), the choice.
        help: one sentence for a tooltip.
        fusible: whether values that differ always train in one array (a hyperparameter of the
            optimizer, say); otherwise it depends on what the value does to the module.
        group: said beside the name in a long list.
    """

    name: str
    type: str = "any"
    default: Json = None
    choices: tuple[Json, ...] = ()
    low: float | None = None
    high: float | None = None
    help: str = ""
    fusible: bool = False
    group: str = ""
    above: float | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    def check(self, value: Json) -> Json:
        """The value in this axis's type.

        Raises:
            GridError: it is of another type, out of bounds or not a choice.
        """
        if self.choices:
            for choice in self.choices:
                if type(choice) is type(value) and choice == value:
                    return choice
            if isinstance(value, str) and (known := value.lower().replace("_", "")) in self.aliases:
                return self.aliases[known]
            raise GridError("not a choice", where=self.name, got=value, accepted=", ".join(map(show, self.choices)))
        if self.type in ("float", "int"):
            value = self._number(value)
        elif self.type == "bool" and not isinstance(value, bool):
            raise GridError("not a boolean", where=self.name, got=value, accepted="true, false")
        elif self.type == "str" and not isinstance(value, str):
            value = show(value)
        return value

    def check_or_none(self, value: Json) -> Json:
        """As `check`; None as well where that is the default, and stands for something else."""
        return None if value is None and self.default is None else self.check(value)

    def _number(self, value: Json) -> float | int:
        whole = self.type == "int"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GridError(
                "not a number", where=self.name, got=value, accepted="whole numbers" if whole else "numbers"
            )
        if whole and value != int(value):
            raise GridError("not a whole number", where=self.name, got=value, accepted="whole numbers")
        value = int(value) if whole else float(value)
        below = (self.low is not None and value < self.low) or (self.above is not None and value <= self.above)
        if below or (self.high is not None and value > self.high):
            raise GridError("out of bounds", where=self.name, got=value, accepted=self._bounds())
        return value

    def _bounds(self) -> str:
        low = "" if self.low is None else f"at least {self.low:,g}"
        above = "" if self.above is None else f"above {self.above:,g}"
        high = (
            "" if self.high is None else f"at most {self.high:,.0f}" if self.high >= 1000 else f"at most {self.high:g}"
        )
        return " and ".join(filter(None, [low, above, high]))


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
        return f"#{self.id} {', '.join(f'{k}={show(v)}' for k, v in self.config.items())}".rstrip()


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
            check_name(name): check_values(name, values) for name, values in given.items()
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
    return tuple(_tidy(10.0**e) for e in _spaced(math.log10(start), math.log10(stop), count))


def _spaced(start: float, stop: float, count: int) -> list[float]:
    return [start] if count == 1 else [start + (stop - start) * i / (count - 1) for i in range(count)]


def integers(start: int, stop: int, step: int = 1) -> tuple[int, ...]:
    """The whole numbers from `start` to `stop`, both included, `step` apart."""
    if step < 1 or stop < start:
        raise GridError("not a range of whole numbers", got=(start, stop, step), accepted="start <= stop and step >= 1")
    _check_count((stop - start) // step + 1)
    return tuple(range(start, stop + 1, step))


def seeds(count: int, start: int = 0) -> tuple[int, ...]:
    """`count` seeds, one after another."""
    _check_count(count)
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


def _check_range(start: float, stop: float, count: int) -> None:
    if not (math.isfinite(start) and math.isfinite(stop)):
        raise GridError("the ends of a range must be finite", got=(start, stop))
    _check_count(count)


def _check_count(count: int) -> None:
    if count < 1 or count > MAX_VARIANTS:
        raise GridError("a range has too few or too many values", got=count, accepted=f"1 to {MAX_VARIANTS}")


def _tidy(value: float) -> float:
    # 12 digits: 10 ** -3 computed by logarithms must read 0.001, and no sweep tells such neighbours apart.
    return float(f"{value:.12g}")


def check_values(name: str, values: Any) -> tuple[Json, ...]:
    if isinstance(values, str | int | float) or values is None:
        values = (values,)
    elif not isinstance(values, Iterable):
        raise GridError("not a list of values", where=name, got=values)
    checked = tuple(_check_value(name, v) for v in itertools.islice(values, MAX_VARIANTS + 1))
    if len(checked) > MAX_VARIANTS:
        raise GridError("too many values", where=name, accepted=f"up to {MAX_VARIANTS}")
    if not checked:
        raise GridError("no values", where=name, remedy="give at least one, or leave the axis out")
    seen: set[tuple[type, Json]] = set()
    for value in checked:
        if (type(value), value) in seen:  # true is no 1
            raise GridError(f"{show(value)} is given twice", where=name, remedy="to repeat a run, sweep the axis seed")
        seen.add((type(value), value))
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
