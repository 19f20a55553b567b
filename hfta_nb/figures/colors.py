"""Colours and names of members, axis values and device measurements, the same everywhere.

The live view, the figures and the tables of the Workbench use this module, so that a member looks the same in each.
Categories use the palette of Okabe and Ito (https://jfly.uni-koeln.de/color), which people with any kind of colour
vision can distinguish; numbers use viridis, whose lightness increases evenly.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hfta_nb.errors import GridError
from hfta_nb.records.events import DELETED, Json
from hfta_nb.records.history import History, Member
from hfta_nb.search.grid import Variant, show

MAX_LEGEND = 12
"""With more members than this, colours show the values of an axis instead of the member."""

DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2), (9, 3, 2, 3))
"""On and off lengths in pixels; the palette is repeated with each."""


class Drawn(Protocol):
    """A member to draw: a `Variant`, a `VariantRecord`, or a `Member` of a history."""

    @property
    def id(self) -> int: ...
    @property
    def config(self) -> dict[str, Json]: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a line is drawn.

    Attributes:
        light: its colour on a light background, as "#rrggbb".
        dark: its colour on a dark background, with the same hue.
        dash: on and off lengths in pixels; empty for a solid line.
    """

    light: str
    dark: str
    dash: tuple[float, ...] = ()


# Black is invisible on dark and pure yellow (#f0e442) on white: these two differ by theme, and come last.
OKABE_ITO: tuple[Stroke, ...] = (
    Stroke("#0072b2", "#3b9bd9"),
    Stroke("#e69f00", "#e69f00"),
    Stroke("#009e73", "#00b383"),
    Stroke("#d55e00", "#e8702a"),
    Stroke("#cc79a7", "#cc79a7"),
    Stroke("#56b4e9", "#8fd0f5"),
    Stroke("#000000", "#f2f2f2"),
    Stroke("#cdbb00", "#f0e442"),
)

# fmt: off
_VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)
# fmt: on
# Excludes the ends, which would vanish in the background.
_LIGHT_RANGE = (0.0, 0.85)
_DARK_RANGE = (0.25, 1.0)


MOST_DRAWN = 256
"""Of so many members all curves are drawn; more are neither seen nor drawn in time."""


def drawn(history: History, chosen: Iterable[int] = ()) -> list[Member]:
    """The members whose curves are drawn: all that were not deleted; or of many those that are chosen, the best, and
    some from all over the grid; at most half as many again as `MOST_DRAWN`, in the order of the grid.

    Args:
        history: the run.
        chosen: ids of members that are drawn in any case, up to half of `MOST_DRAWN`.
    """
    members, half = [m for m in history.members.values() if m.state != DELETED], MOST_DRAWN // 2
    if len(members) <= MOST_DRAWN:
        return members
    ids = {*list(chosen)[:half], *(m.id for m in history.leaderboard()[:half])}
    ids |= {m.id for m in members[:: math.ceil(len(members) / half)]}
    return [m for m in members if m.id in ids]


def sequential(position: float) -> Stroke:
    """The colour of a number at `position`, from 0 (lowest) to 1 (highest)."""
    return Stroke(_ramp(position, *_LIGHT_RANGE), _ramp(position, *_DARK_RANGE))


def member(variant: int) -> Stroke:
    """The stroke of this variant id if colours show the member."""
    return _cycle(variant)


def label(variant: Drawn, names: Iterable[str] | None = None) -> str:
    """A member's name, for example ``#3 lr=0.001, width=16``.

    Args:
        variant: the member.
        names: the axes to name; all where None. See `varying`.
    """
    kept = variant.config if names is None else {n: variant.config[n] for n in names if n in variant.config}
    return Variant(variant.id, kept, variant.seed).label.strip()


def varying(variants: Iterable[Drawn]) -> list[str]:
    """The axes in which members differ."""
    configs = [v.config for v in variants]
    names = dict.fromkeys(name for config in configs for name in config)
    return [n for n in names if any(not _same(c.get(n), configs[0].get(n)) for c in configs)]


@dataclass(frozen=True)
class AxisColors:
    """The colours of an axis's values.

    Attributes:
        name: the axis.
        values: its values; numbers are sorted.
        sequential: whether they are numbers on a scale instead of categories.
        log: whether that scale is logarithmic.
        strokes: one per value.
    """

    name: str
    values: tuple[Json, ...]
    sequential: bool
    log: bool
    strokes: tuple[Stroke, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as text."""
        return tuple(show(v) for v in self.values)

    def index(self, value: Json) -> int:
        """The index of a value.

        Raises:
            GridError: the axis has no such value.
        """
        with contextlib.suppress(KeyError, TypeError):  # lists have no hash
            return self._places[_key(value)]
        for place, known in enumerate(self.values):
            if _same(known, value):
                return place
        raise GridError("no such value", where=self.name, got=value, accepted=", ".join(self.labels))

    @functools.cached_property
    def _places(self) -> dict[tuple[bool, Any], int]:
        return _places(self.values)

    def __getitem__(self, value: Json) -> Stroke:
        return self.strokes[self.index(value)]


def axis(name: str, values: Iterable[Json]) -> AxisColors:
    """Colours for the values of an axis: a scale for numbers, the palette for anything else.

    Numbers whose ratios are more even than their differences (1e-3, 1e-2, 1e-1) are placed by their logarithm.
    """
    found = tuple(values)
    numbers = [v for v in found if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(found):
        # More categories than the palette has are spread over the scale.
        many = len(found) > len(OKABE_ITO)
        spread = [i / max(1, len(found) - 1) for i in range(len(found))]
        strokes = tuple(sequential(p) if many else _cycle(i) for i, p in enumerate(spread))
        return AxisColors(name, found, sequential=False, log=False, strokes=strokes)
    ordered = sorted(numbers)
    log = _is_log(ordered)
    places = [math.log(v) if log else float(v) for v in ordered]
    width = places[-1] - places[0] if places else 0.0
    strokes = tuple(sequential((p - places[0]) / width if width else 0.5) for p in places)
    return AxisColors(name, tuple(ordered), sequential=True, log=log, strokes=strokes)


def swept(axes: Mapping[str, Sequence[Json]]) -> list[str]:
    """The axes that members can differ in: those with more than one value."""
    return [name for name, values in axes.items() if len(values) > 1]


def color_axis(members: int, axes: Mapping[str, Sequence[Json]], color_by: str | None = "") -> str:
    """The axis that sets the colour, or "" for the member.

    Args:
        members: number of members.
        axes: the grid's axes and their values.
        color_by: the requested axis; if empty or unknown, `MAX_LEGEND` decides.
    """
    names = swept(axes)
    if color_by in names:
        return str(color_by)
    return names[0] if members > MAX_LEGEND and names else ""


class Scheme:
    """How the members of a run are drawn.

    Args:
        variants: the members.
        axes: the grid's axes and their values.
        color_by: the axis that sets the colour; empty for the member, or for the first axis if there are more members
            than `MAX_LEGEND`.

    Attributes:
        axis: the colours of that axis, or None if colours show the member.
    """

    def __init__(
        self, variants: Sequence[Drawn], axes: Mapping[str, Sequence[Json]], color_by: str | None = ""
    ) -> None:
        name = color_axis(len(variants), axes, color_by)
        self.axis = axis(name, values_of(name, variants, axes)) if name else None

    def stroke(self, variant: Drawn) -> Stroke:
        """How one member is drawn."""
        if self.axis is None:
            return member(variant.id)
        return self.axis[variant.config.get(self.axis.name)]


def values_of(name: str, variants: Iterable[Drawn], axes: Mapping[str, Sequence[Json]]) -> tuple[Json, ...]:
    """The values of an axis: those of the grid, then those that only members have (clones off the grid)."""
    found = list(axes.get(name, ()))
    known = _places(found)
    for variant in variants:
        value = variant.config.get(name)
        with contextlib.suppress(TypeError):  # lists have no hash
            if _key(value) in known:
                continue
        if not any(_same(value, other) for other in found):
            found.append(value)
            known |= _places([value])
    return tuple(found)


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """How one measurement of the device is drawn.

    Attributes:
        key: its name in `DeviceSampled.values`, or `CORES`; another device's is behind its name and a slash.
        label: its displayed name.
        kind: "fraction" (0..1), "spread" (one end of a band around one), "power" (watts), "memory" (bytes), or "other"
            (only shown as a number).
        stroke: how it is drawn.
        faint: whether it is one of several cores, drawn behind their mean.
    """

    key: str
    label: str
    kind: str
    stroke: Stroke
    faint: bool = False


CORES = "core_mean"
"""Name of the mean over cores."""
SPREAD = ("core_min", "core_max")
"""Names of the least and the greatest load of a core."""

CPU = Stroke("#7a5230", "#c8a27a")
"""How the load of the CPU is drawn: in no member's colour."""
POWER = Stroke("#7b4ea3", "#b48ad9")
"""How the power of the device is drawn."""
_DEVICE_LABELS = {
    "sm_active": "SM active",
    "sm_occupancy": "SM occupancy",
    "tensor_active": "tensor cores",
    "dram_active": "DRAM",
    "gpu_utilization": "GPU busy",
    CORES: "CPU",
    "memory_bytes": "memory",
    "process_memory_bytes": "memory of its process",
    "memory_total_bytes": "memory in all",
    "power_w": "power",
}
_GPU_FRACTIONS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active", "gpu_utilization")
_DEVICE_KINDS = ("fraction", "spread", "power", "memory", "other")
_UNIT = re.compile(r"_(bytes|w|c|j|s|hz|mhz|per_s)$")
_CORE = re.compile(r"core\d+$")
_MEMORY = {
    "memory_bytes": Stroke("#6b6b6b", "#b5b5b5"),
    "process_memory_bytes": Stroke("#6b6b6b", "#b5b5b5", (4, 3)),
}


def core_mean(values: Mapping[str, float]) -> float | None:
    """The mean load of the cores in a sample; None where it has none."""
    cores = [value for key, value in values.items() if _CORE.match(key)]
    return sum(cores) / len(cores) if cores else None


def cores_together(values: Mapping[str, float]) -> dict[str, float]:
    """A sample with the mean, the least and the greatest load of the cores instead of each one's."""
    cores = [value for key, value in values.items() if _CORE.match(key)]
    rest = {key: value for key, value in values.items() if not _CORE.match(key)}
    return {CORES: sum(cores) / len(cores), SPREAD[0]: min(cores), SPREAD[1]: max(cores), **rest} if cores else rest


def device_lines(keys: Iterable[str]) -> tuple[DeviceLine, ...]:
    """How each measurement in a device's samples is drawn."""
    every = list(dict.fromkeys(keys))
    further = [key for key in every if "/" in key]
    names = [key for key in every if "/" not in key]
    if any(_CORE.match(k) for k in names):
        names = [CORES, *(k for k in names if k != CORES)]
    lines = [_device_line(key, place) for key, place in _numbered(names)]
    known = {line.key: line for line in lines}
    for key in further:  # as of the run's own device
        measurement = key.rpartition("/")[2]
        lines.append(replace(known.get(measurement) or _device_line(measurement, 0), key=key))
    return tuple(sorted(lines, key=lambda line: _DEVICE_KINDS.index(line.kind)))


def _numbered(names: list[str]) -> list[tuple[str, int]]:
    # A GPU's fractions have fixed places in the palette; cores and other values use those after them.
    free = [k for k in names if k not in _DEVICE_LABELS and not _UNIT.search(k) and not k.startswith("core")]
    first = len(_GPU_FRACTIONS) if any(k in _GPU_FRACTIONS for k in names) else 0
    places = {k: i for i, k in enumerate(_GPU_FRACTIONS)} | {k: first + i for i, k in enumerate(free)}
    return [(k, places.get(k, 0)) for k in names]


def _device_line(key: str, place: int) -> DeviceLine:
    text = _DEVICE_LABELS.get(key, key.replace("_", " "))
    if key in _MEMORY:
        return DeviceLine(key, text, "memory", _MEMORY[key])
    if key == "power_w":
        return DeviceLine(key, text, "power", POWER)
    if _UNIT.search(key):
        return DeviceLine(key, text, "other", _cycle(0))
    if key in (CORES, *SPREAD):
        return DeviceLine(key, text, "fraction" if key == CORES else "spread", CPU)
    if _CORE.match(key):
        return DeviceLine(key, f"core {key[4:]}", "fraction", Stroke("#9a9a9a", "#7d7d7d"), faint=True)
    return DeviceLine(key, text, "fraction", _cycle(place))


def _cycle(place: int) -> Stroke:
    base = OKABE_ITO[place % len(OKABE_ITO)]
    return Stroke(base.light, base.dark, DASHES[place // len(OKABE_ITO) % len(DASHES)])


def _places(values: Iterable[Json]) -> dict[tuple[bool, Any], int]:
    """Where each value is, of those that have a hash."""
    found: dict[tuple[bool, Any], int] = {}
    for place, value in enumerate(values):
        with contextlib.suppress(TypeError):
            found.setdefault(_key(value), place)
    return found


def _key(value: Json) -> tuple[bool, Any]:
    """Equal for the same value; see `_same`."""
    return isinstance(value, bool), value


def _same(a: Json, b: Json) -> bool:
    # In Python True equals 1, and 1 equals 1.0: here only the latter two are the same value.
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _is_log(ordered: Sequence[float]) -> bool:
    if len(ordered) < 3 or ordered[0] <= 0:
        return False
    return _unevenness([math.log(v) for v in ordered]) < _unevenness(list(ordered)) - 1e-9


def _unevenness(places: Sequence[float]) -> float:
    gaps = [b - a for a, b in itertools.pairwise(places)]
    total = sum(gaps)
    return sum((gap / total) ** 2 for gap in gaps)


def _ramp(position: float, low: float, high: float) -> str:
    at = (low + (high - low) * min(1.0, max(0.0, position))) * (len(_VIRIDIS) - 1)
    left = min(int(at), len(_VIRIDIS) - 2)
    part = at - left
    pairs = ((int(_VIRIDIS[left][i : i + 2], 16), int(_VIRIDIS[left + 1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in pairs)
