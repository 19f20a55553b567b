"""Gantt charts of a plan of flotillas, and of a run: which group holds which devices, and when."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hfta_nb.errors import StudyError
from hfta_nb.figures import colors
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, MUTED, color_bar, dress, legend, time_axis
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 60
"""With more flotillas than this their beginnings have no lines."""

_ROOM, _LETTER, _TEXT_HEIGHT = 95, 0.085, 0.16
_STOPPED = "////"


class Drawn(Protocol):
    """A flotilla to be drawn, as `hfta_nb.fleet.Flotilla`."""

    @property
    def start_s(self) -> float: ...
    @property
    def devices(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def ends_s(self) -> Mapping[str, float]: ...
    @property
    def finished(self) -> tuple[str, ...]: ...


class DrawnPlan(Protocol):
    """A plan to be drawn, as `hfta_nb.fleet.Plan`."""

    @property
    def gpus(self) -> int: ...
    @property
    def makespan_s(self) -> float: ...
    @property
    def utilization(self) -> float: ...
    @property
    def flotillas(self) -> Sequence[Drawn]: ...


class _Box(NamedTuple):
    """Neighbouring devices that a group holds for a time."""

    group: str
    devices: int
    start_s: float
    end_s: float
    first: int
    last: int
    finished: bool


def gantt(plan: DrawnPlan) -> Figure:
    """A Gantt chart of a plan: a box for each group on the devices that it holds.

    Up to 12 groups have a colour each, in the order of their names; of more, colour is the number of devices that a
    group holds. A hatched box ends in a checkpoint, and its group goes on in a later flotilla. Dotted lines mark where
    flotillas begin (of at most 60).

    Args:
        plan: see `hfta_nb.fleet.plan`.

    Returns:
        A figure of 7.5 by at most 7 inches.

    Example:
        >>> import hfta_nb as hfta
        >>> figure = gantt(hfta.fleet.plan({"a": [100, 190], "b": [80, 150], "c": [40, 75]}, 2, epochs=10))
    """
    starts = sorted({flotilla.start_s for flotilla in plan.flotillas} - {0.0})
    return _chart(plan, _title(plan), starts if len(starts) < MOST_LINES else ())


def placements(history: History) -> Figure:
    """A Gantt chart of a run with several workers: a box for each array on the places where it has trained.

    A hatched box ends with the array unfinished: its worker was lost, or it had to make room for another flotilla. An
    array that still trains has a box up to the latest known time.

    Args:
        history: of the run; see `hfta_nb.Study.history`.

    Returns:
        A figure of 7.5 by at most 7 inches.

    Raises:
        StudyError: nothing has trained on several workers.
    """
    held = history.placements
    if not held:
        raise StudyError("no array was given to a worker", where="placements", accepted="a run with several workers",
                         remedy='run(executor="processes")')  # fmt: skip
    begin_s = held[0].start_s
    times = [t for one in held for t in (one.start_s, one.end_s) if not math.isnan(t)]
    times += [] if history.progress is None else [history.progress.time_s]
    end_s = max(max(times) - begin_s, 1e-3)
    found = []
    for one in held:
        name, until_s = f"array {one.group}", end_s if math.isnan(one.end_s) else one.end_s - begin_s
        found.append(_Held(one.start_s - begin_s, {name: one.slots}, {name: until_s}, (name,) if one.complete else ()))
    used_s = sum((box.end_s - box.start_s) * (box.last - box.first + 1) for one in found for box in _boxes(one))
    ran = _Ran(history.slots, end_s, used_s / (history.slots * end_s), found)
    arrays = len({one.group for one in held})
    places = f"{ran.gpus} worker{'s' * (ran.gpus != 1)}"
    title = f"{arrays} array{'s' * (arrays != 1)} on {places}, which train {ran.utilization:.0%} of the time"
    return _chart(ran, title, place="worker")


class _Held(NamedTuple):
    """An array on its places, as a flotilla of its own."""

    start_s: float
    devices: Mapping[str, tuple[int, ...]]
    ends_s: Mapping[str, float]
    finished: tuple[str, ...]


class _Ran(NamedTuple):
    """What has trained, as a plan."""

    gpus: int
    makespan_s: float
    utilization: float
    flotillas: Sequence[Drawn]


def _chart(plan: DrawnPlan, title: str, lines: Sequence[float] = (), place: str = "device") -> Figure:
    boxes = [box for flotilla in plan.flotillas for box in _boxes(flotilla)]
    names = sorted({box.group for box in boxes}, key=_numbered)
    height = min(5.0, max(1.2, 0.28 * plan.gpus))
    figure = figure_of(7.5, height + (1.6 if len(names) <= colors.MAX_LEGEND else 1.1))
    axes = figure.add_subplot()
    dress(axes, place, "time")
    axes.grid(visible=False)
    axes.set(xlim=(0, plan.makespan_s), ylim=(plan.gpus - 0.5, -0.5))
    time_axis(axes)
    _devices(axes)
    if len(names) <= colors.MAX_LEGEND:
        _by_group(axes, boxes, names)
        _write(axes, boxes, names, plan, height)
    else:
        _by_count(axes, boxes)
    for start_s in lines:
        axes.axvline(start_s, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=4)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def _boxes(flotilla: Drawn) -> list[_Box]:
    found = []
    finished = set(flotilla.finished)
    for group, devices in flotilla.devices.items():
        ordered = sorted(devices)
        first = 0
        for i in range(1, len(ordered) + 1):
            if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
                span = (flotilla.start_s, flotilla.ends_s[group], ordered[first], ordered[i - 1])
                found.append(_Box(group, len(ordered), *span, group in finished))
                first = i
    return found


def _by_group(axes: Axes, boxes: list[_Box], names: list[str]) -> None:
    from matplotlib.patches import Patch

    shades = {name: _shade(place) for place, name in enumerate(names)}
    _fill(axes, boxes, [shades[box.group] for box in boxes])
    legend(axes, [(Patch(facecolor=shades[name]), plain(name, 30)) for name in names], _ROOM)


def _numbered(name: str) -> list[tuple[int, int, str]]:
    """The order of names, "array 10" after "array 9": so a group has the same colour in all charts of a study."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def _shade(place: int) -> tuple[float, float, float]:
    """The palette, and lighter once it has been gone through."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colors.OKABE_ITO[place % len(colors.OKABE_ITO)].light)
    part = 0.55 * (place // len(colors.OKABE_ITO))
    return red + part * (1 - red), green + part * (1 - green), blue + part * (1 - blue)


def _by_count(axes: Axes, boxes: list[_Box]) -> None:
    scheme = colors.axis("devices of a group", sorted({box.devices for box in boxes}))
    _fill(axes, boxes, [scheme[box.devices].light for box in boxes])
    color_bar(axes, scheme)


def _fill(axes: Axes, boxes: list[_Box], shades: Sequence[Any]) -> None:
    from matplotlib.collections import PolyCollection

    for finished in (True, False):
        drawn = [(box, shade) for box, shade in zip(boxes, shades, strict=True) if box.finished == finished]
        corners = []
        for box, _ in drawn:
            low, high = box.first - 0.46, box.last + 0.46
            corners.append([(box.start_s, low), (box.end_s, low), (box.end_s, high), (box.start_s, high)])
        hatch = "" if finished else _STOPPED
        width = 0.6 if len(boxes) < 500 else 0.1
        axes.add_collection(
            PolyCollection(
                corners,
                facecolors=[shade for _, shade in drawn],
                edgecolors="white",
                linewidths=width,
                hatch=hatch,
                zorder=3,
            )
        )


def _write(axes: Axes, boxes: list[_Box], names: list[str], plan: DrawnPlan, height: float) -> None:
    """Names in the boxes that they fit into; sizes are in inches."""
    from matplotlib.colors import to_rgb

    for box in boxes:
        text = plain(box.group, 20)
        width = 6.4 * (box.end_s - box.start_s) / plan.makespan_s
        if width < _LETTER * len(text) + 0.08 or height * (box.last - box.first + 0.92) / plan.gpus < _TEXT_HEIGHT:
            continue
        shade = _shade(names.index(box.group))
        red, green, blue = to_rgb(shade)
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
        place = ((box.start_s + box.end_s) / 2, (box.first + box.last) / 2)
        drawn = axes.text(*place, text, ha="center", va="center", fontsize=8, color=INK if light else "white", zorder=5)
        if not box.finished:  # hatches would run through the letters
            drawn.set_bbox({"facecolor": shade, "edgecolor": "none", "pad": 1.5})


def _devices(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, colors=MUTED, labelcolor=INK)


def _title(plan: DrawnPlan) -> str:
    devices = f"{plan.gpus} device{'s' * (plan.gpus != 1)}"
    flotillas = f"{len(plan.flotillas)} flotilla{'s' * (len(plan.flotillas) != 1)}"
    return f"{flotillas} on {devices}, which compute {plan.utilization:.0%} of the time"
