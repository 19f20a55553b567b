"""Axes to ordered variants."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from hfta_nb.errors import GridError
from hfta_nb.errors.border import ITEMS, number, plain, takes
from hfta_nb.errors.plain_text import visible
from hfta_nb.records.events import Json, tuples
from hfta_nb.search.grid.nested import bare_name, check_flat, products
from hfta_nb.search.grid.ranges import MAX_VARIANTS


@dataclass(frozen=True)
class Bounds:
    """Bounds of a numeric parameter: ``width: Annotated[int, Bounds(low=1)]``.

    Attributes:
        low, high: inclusive; None for none.
        above: exclusive; None for none.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None


Size = Annotated[int, Bounds(1, 1_000_000)]
"""Bound of a width or a count: larger than any layer, but small enough for torch to count elements."""

Depth = Annotated[int, Bounds(1, 10_000)]
Layers = Annotated[int, Bounds(0, 10_000)]
"""Bounds of a number of layers, without and with 0. Each layer is an object, so a typing mistake would take hours to
build."""

Factor = Annotated[float, Bounds(high=1_000, above=0)]
"""Of a width."""


@dataclass(frozen=True)
class AxisSpec:
    """The accepted values of an axis.

    Attributes:
        name: the axis.
        type: "float", "int", "bool", "str", "integers" (ascending, at least one) or "any".
        default: the value when the axis is not in the grid.
        choices: the only values accepted, if any.
        low, high: inclusive bounds for numbers; None for none.
        above: an exclusive one; None for none.
        aliases: other spellings of a choice (in lower case, without underscores), with the choice.
        help: one sentence for a tooltip.
        group: shown beside the name in a long list.
    """

    name: str
    type: str = "any"
    default: Json = None
    choices: tuple[Json, ...] = ()
    low: float | None = None
    high: float | None = None
    help: str = ""
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
            if value is None and "none" in self.choices:
                return "none"
            if isinstance(value, str) and (known := value.lower().replace("_", "")) in self.aliases:
                return self.aliases[known]
            words = str(value) if isinstance(value, str | int | float) else ""
            near = difflib.get_close_matches(words, list(map(show, self.choices)), 1)
            raise GridError("not a choice", where=self.name, got=value, accepted=", ".join(map(show, self.choices)),
                            remedy=f"did you mean {near[0]}?" if near else "")  # fmt: skip
        if self.type in ("float", "int"):
            value = self._number(value)
        elif self.type == "integers":
            value = self._integers(value)
        elif self.type == "bool" and not isinstance(value, bool):
            raise GridError("not a boolean", where=self.name, got=value, accepted="true, false")
        elif self.type == "str" and not isinstance(value, str):
            value = show(value)
        return value

    def check_or_none(self, value: Json) -> Json:
        """Like `check`, but accept None if it is the default."""
        return None if value is None and self.default is None else self.check(value)

    def _number(self, value: Json) -> float | int:
        whole = self.type == "int"
        if isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            value = float(value)  # as `parse_scalar` reads it, it is a word
        accepted = "whole numbers" if whole else "numbers"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GridError("not a number", where=self.name, got=value, accepted=accepted)
        if not number(value) or not math.isfinite(value):  # whole numbers may be beyond a float
            raise GridError("not a finite number", where=self.name, got=value, accepted=accepted)
        if whole and isinstance(value, float) and not value.is_integer():
            raise GridError("not a whole number", where=self.name, got=value, accepted="whole numbers")
        value = int(value) if whole else float(value)
        below = (self.low is not None and value < self.low) or (self.above is not None and value <= self.above)
        if below or (self.high is not None and value > self.high):
            raise GridError("out of bounds", where=self.name, got=value, accepted=self._bounds())
        return value

    def _integers(self, value: Json) -> tuple[int, ...]:
        if isinstance(value, str):  # as on a command line, where a comma separates the values of an axis
            texts = value.split("/")
            value = tuple(int(text) if (text.strip().isascii() and text.strip().isdigit()) else text for text in texts)
        numbers = value if isinstance(value, tuple) else (value,)
        whole = all(type(number) is int and number >= (self.low or 0) for number in numbers)
        if not (numbers and whole) or list(numbers) != sorted(set(numbers)):  # type: ignore[type-var]
            accepted = f"ascending whole numbers from {self.low or 0:g}, as [30, 60] or 30/60"
            raise GridError("not a list of whole numbers", where=self.name, got=value, accepted=accepted)
        return numbers  # type: ignore[return-value]

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
        id: its index in the grid, from 0.
        config: one value per axis of the grid.
        seed: the seed of its initialisation and of all its random numbers.
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
            and `seeds` for ranges of values. Or a list of configurations, each a dict or an instance of a dataclass
            with one value per name; these are the variants, and missing names have their defaults. Or, as in
            scikit-learn, a list of dicts all of whose values are lists: each dict is a grid of its own.

    Attributes:
        product: the axes whose product is taken; None if there are only listed variants.
        listed: configurations that are variants themselves, after those of the product.
        axes: all axes, with the values that occur.

    Raises:
        GridError: a name or a value can't be used, an axis is empty or has a value twice, a configuration is given
            twice, or the grid is larger than `MAX_VARIANTS`.

    Example:
        >>> [v.label for v in Grid({"lr": [1e-3, 1e-2], "width": [8]}).variants()]
        ['#0 lr=0.001, width=8', '#1 lr=0.01, width=8']
        >>> [v.label for v in Grid([{"lr": 1e-3, "width": 8}, {"lr": 1e-2, "width": 16}]).variants()]
        ['#0 lr=0.001, width=8', '#1 lr=0.01, width=16']
    """

    @takes(GridError)
    def __init__(self, axes: Mapping[str, Any] | Grid | Iterable[Any] | None = None) -> None:
        self.product: dict[str, tuple[Json, ...]] | None = None
        self.listed: tuple[dict[str, Json], ...] = ()
        if isinstance(axes, Grid):
            self.product, self.listed = axes.product, axes.listed
        elif axes is None or isinstance(axes, Mapping):
            check_flat(axes or {})
            self.product = {check_name(name): check_values(name, values) for name, values in (axes or {}).items()}
        else:
            self.listed = configurations(products(axes) or axes)
            _check_different(self.listed)
        self.axes = self._merged()
        size = len(self)
        if size > MAX_VARIANTS:
            counts = " x ".join(f"{len(v)} {k}" for k, v in (self.product or {}).items()) or "a list"
            raise GridError(
                "too many variants", where="grid", got=size, accepted=f"up to {MAX_VARIANTS}", remedy=f"it is {counts}"
            )

    @classmethod
    @takes(GridError, listed=ITEMS)
    def of(cls, listed: Iterable[Mapping[str, Json]]) -> Grid:
        """A grid of these configurations only, which may repeat."""
        found = cls()
        found.product = None
        return found.plus(listed)

    @takes(GridError, listed=ITEMS)
    def plus(self, listed: Iterable[Mapping[str, Json]]) -> Grid:
        """This grid with further configurations, which may repeat."""
        found, more = Grid(self), list(listed)
        found.listed = (*self.listed, *(configurations(more) if more else ()))
        found.axes = found._merged()
        return found

    def _merged(self) -> dict[str, tuple[Json, ...]]:
        found = {name: dict.fromkeys((type(v), v) for v in values) for name, values in (self.product or {}).items()}
        for config in self.listed:
            for name, value in config.items():
                found.setdefault(name, {})[type(value), value] = None  # True is not 1
        return {name: tuple(value for _, value in values) for name, values in found.items()}

    def __len__(self) -> int:
        product = 0 if self.product is None else math.prod(len(v) for v in self.product.values())
        return product + len(self.listed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return False
        mine, theirs = self.product, other.product
        same = mine == theirs and list(mine or ()) == list(theirs or ())
        return same and self.listed == other.listed

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = f".plus({list(self.listed)!r})" if self.listed and self.product is not None else ""
        return f"Grid({list(self.listed) if self.product is None else self.product!r}){more}"

    def variants(self) -> list[Variant]:
        """All variants in order; an empty grid has one, with the defaults."""
        axes = self.product or {}
        combined = [] if self.product is None else itertools.product(*axes.values())
        configs = [*(dict(zip(axes, values, strict=True)) for values in combined), *map(dict, self.listed)]
        return [Variant(number, config, _seed_of(config)) for number, config in enumerate(configs)]


def configurations(given: Any) -> tuple[dict[str, Json], ...]:
    """Check explicit configurations: one, or several.

    Args:
        given: a dict or an instance of a dataclass, or a list of these.

    Raises:
        GridError: the list is empty, an item has another type, or a name or value can't be used.
    """
    one = isinstance(given, Mapping) or (dataclasses.is_dataclass(given) and not isinstance(given, type))
    what = "a dict of axes to values, or a list of configurations (dicts or instances of a dataclass)"
    if not (one or ITEMS.accepts(given)):
        raise GridError("not a grid", where="grid", got=given, accepted=what)
    found = []
    for config in [given] if one else itertools.islice(given, MAX_VARIANTS + 1):
        if dataclasses.is_dataclass(config) and not isinstance(config, type):
            config = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        if not isinstance(config, Mapping):
            accepted = "a dict or an instance of a dataclass, one value per axis"
            raise GridError("not a configuration", where="grid", got=config, accepted=accepted)
        found.append({check_name(name): _check_value(name, value) for name, value in config.items()})
    if not found:
        raise GridError("no configuration", where="grid", got=given, accepted=what)
    return tuple(found)


def _check_different(listed: Sequence[Mapping[str, Json]]) -> None:
    seen: set[frozenset[tuple[str, type, Json]]] = set()
    for config in listed:
        key = frozenset((name, type(value), value) for name, value in config.items())
        if key in seen:
            raise GridError(
                "is given twice", where="grid", got=dict(config), remedy="to repeat a run, sweep the axis seed"
            )
        seen.add(key)


def show(value: Json) -> str:
    """A value as typed by a person: few digits, ``true`` rather than ``True``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(show(v) for v in value) + ")"
    return "none" if value is None else visible(value)


def check_name(name: object) -> str:
    """Check the name of an axis, which must be a Python identifier."""
    if not isinstance(name, str) or not name.isidentifier():
        bare = bare_name(name) if isinstance(name, str) else ""
        raise GridError(
            "not a name for an axis",
            where="grid",
            got=name,
            accepted="letters, digits and _, not starting with a digit",
            remedy=f"axes have no prefix: {bare}" if bare.isidentifier() else "",
        )
    return name


def check_values(name: str, values: Any) -> tuple[Json, ...]:
    if isinstance(values, str | int | float) or values is None:
        values = (values,)
    elif isinstance(values, bytes) or not isinstance(values, Iterable):
        raise GridError("not a list of values", where=name, got=values)
    checked = tuple(_check_value(name, v) for v in itertools.islice(values, MAX_VARIANTS + 1))
    if len(checked) > MAX_VARIANTS:
        raise GridError("too many values", where=name, accepted=f"up to {MAX_VARIANTS}")
    if not checked:
        raise GridError("no values", where=name, remedy="give at least one, or leave the axis out")
    seen: set[tuple[type, Json]] = set()
    for value in checked:
        if (type(value), value) in seen:  # True is not 1
            raise GridError(f"{show(value)} is given twice", where=name, remedy="to repeat a run, sweep the axis seed")
        seen.add((type(value), value))
    return checked


_BY_NAME = ("optimizer", "lr_scheduler")
"""Axes whose values are names of torch's classes."""


def _check_value(name: str, value: Any) -> Json:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy or torch scalar
        with contextlib.suppress(RuntimeError):  # one without a value (torch's "meta")
            value = value.item()
    value = tuples(value)
    value = tuple(map(plain, value)) if isinstance(value, tuple) else plain(value)
    flat: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    for part in flat:
        if isinstance(part, float) and not math.isfinite(part):
            raise GridError("not a finite number", where=name, got=value)
        if not (part is None or isinstance(part, bool | int | float | str | tuple)):
            remedy = "name the alternatives by strings and choose by name in the build function"
            if name in _BY_NAME and (own := getattr(value, "__name__", "")):
                remedy = f'give its name: "{own.lower()}"'
            accepted = "numbers, booleans, strings, None and tuples of these"
            raise GridError("not a plain value", where=name, got=value, accepted=accepted, remedy=remedy)
    return value  # type: ignore[no-any-return]


def _seed_of(config: Mapping[str, Json]) -> int:
    seed = config.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise GridError("not a seed", where="seed", got=seed, accepted="whole numbers from 0 to below 2**63")
    return seed
