"""Heat maps of two axes of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, MUTED, say
from hfta_nb.records import events as ev
from hfta_nb.records.history import History, Member
from hfta_nb.search.averages import Average

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERS = 10
"""With more columns than this, cells show no numbers."""

_RANGE = 100.0
"""Values that are all positive and differ by more than this factor are coloured by their logarithms."""

Place = tuple[int, int]


def heat_map(history: History, x: str, y: str, metric: str | None = None) -> Figure:
    """A heat map of a metric over two axes of the grid: a cell for each pair of values.

    A cell shows the metric at the best epoch, or its mean over the cell's members if the grid has further axes (such as
    the seed). Members without a finite value are excluded, and their number is shown. A frame marks the best cell of
    the monitored metric.

    Args:
        history: the run.
        x, y: the axes, from left to right and from bottom to top; numbers ascend.
        metric: one of `history.metrics`; by default the monitored metric.

    Returns:
        A figure of at most 7.5 by 6 inches.

    Raises:
        HftaError: the run has no such metric or axis, or `x` and `y` are the same.
    """
    if history.run is None or not history.members:
        figure = figure_of(6.0, 3.0)
        say(_bare(figure.add_subplot()), "no run yet")
        return figure
    columns, rows = (_axis(history, name, where) for name, where in ((x, "x"), (y, "y")))
    if x == y:
        others = ", ".join(name for name in history.run.axes if name != x)
        raise HftaError("the axis of the other direction", where="y", got=y, accepted=others)
    metric = metric or history.run.monitor
    if metric not in history.metrics:
        raise HftaError("the run has no such metric", where="metric", got=metric, accepted=", ".join(history.metrics))
    figure = figure_of(min(7.5, 2.9 + 0.95 * len(columns.values)), min(6.0, 1.3 + 0.6 * len(rows.values)))
    axes = _bare(figure.add_subplot())
    cells = _cells(history, columns, rows)
    _draw(axes, history, metric, cells, columns, rows)
    return figure


def _axis(history: History, name: str, where: str) -> colors.AxisColors:
    grid = history.run.axes if history.run else {}
    if name not in grid:
        raise HftaError("not an axis of the grid", where=where, got=name, accepted=", ".join(grid))
    return colors.axis(name, colors.values_of(name, list(history.members.values()), grid))


def _cells(history: History, columns: colors.AxisColors, rows: colors.AxisColors) -> dict[Place, Average]:
    members: dict[Place, list[Member]] = {}
    for member in history.members.values():
        place = rows.index(member.config.get(rows.name)), columns.index(member.config.get(columns.name))
        members.setdefault(place, []).append(member)
    return {place: Average({}, tuple(found)) for place, found in members.items()}


def _draw(
    axes: Axes,
    history: History,
    metric: str,
    cells: dict[Place, Average],
    columns: colors.AxisColors,
    rows: colors.AxisColors,
) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    values = {place: cell.mean(metric) for place, cell in cells.items()}
    finite = [v for v in values.values() if math.isfinite(v)]
    scale = ScalarMappable(_norm(finite), ListedColormap([colors.sequential(i / 255).light for i in range(256)]))
    for place, cell in cells.items():
        _fill(axes, place, values[place], cell, metric, scale, numbers=len(columns.values) <= MOST_NUMBERS)
    axes.set(xlim=(-0.5, len(columns.values) - 0.5), ylim=(-0.5, len(rows.values) - 0.5))
    axes.set_xticks(range(len(columns.values)), [plain(label, 20) for label in columns.labels])
    axes.set_yticks(range(len(rows.values)), [plain(label, 20) for label in rows.labels])
    axes.set_xlabel(plain(columns.name), color=INK)
    axes.set_ylabel(plain(rows.name), color=INK)
    if not finite:
        return
    figure: Any = axes.figure
    bar = figure.colorbar(scale, ax=axes, fraction=0.06, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize=8)
    bar.set_label(plain(_label(history, metric, (columns.name, rows.name))), color=INK, fontsize=9)
    if history.run is not None and metric == history.run.monitor:
        _frame(axes, _best(cells, values, history.maximize))


def _norm(values: Sequence[float]) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    low, high = min(values, default=0.0), max(values, default=1.0)
    return LogNorm(low, high) if low > 0 and high > _RANGE * low else Normalize(low, high)


def _fill(axes: Axes, place: Place, value: float, cell: Average, metric: str, scale: Any, numbers: bool) -> None:
    from matplotlib.patches import Rectangle

    row, column = place
    seen = cell.count(metric)
    color = scale.to_rgba(value) if seen else (0.93, 0.94, 0.95, 1.0)
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1.5))
    if not numbers:
        return
    lost = all(member.state in (ev.DIVERGED, ev.FAILED) for member in cell.members)
    label = f"{value:.4g}" if seen else "lost" if lost else "-"
    if 0 < seen < len(cell.members):
        label += f"\n{seen} of {len(cell.members)}"
    light = 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2] > 0.5
    axes.text(column, row, label, ha="center", va="center", fontsize=9, color=INK if light else "white")


def _best(cells: dict[Place, Average], values: dict[Place, float], maximize: bool) -> Place:
    """The cell with the best mean among those that lost the fewest members, as in `averages`."""

    def key(place: Place) -> tuple[bool, int, float]:
        value = values[place]
        return math.isnan(value), cells[place].lost, -value if maximize else value

    return min(values, key=key)


def _frame(axes: Axes, place: Place) -> None:
    from matplotlib.patches import Rectangle

    corner, color = (place[1] - 0.46, place[0] - 0.44), colors.OKABE_ITO[3].light
    axes.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=color, linewidth=2, zorder=4))


def _label(history: History, metric: str, shown: Sequence[str]) -> str:
    name = metric.replace("val_", "validation ").replace("_", " ")
    others = [axis for axis in colors.swept(history.run.axes if history.run else {}) if axis not in shown]
    return f"{name}, mean over {', '.join(others)}" if others else name


def _bare(axes: Axes) -> Axes:
    axes.set(xticks=[], yticks=[])
    axes.tick_params(colors=MUTED, labelcolor=INK, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes
