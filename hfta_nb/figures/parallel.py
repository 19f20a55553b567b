"""Parallel coordinates: every configuration as a line through its values on all axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, MUTED
from hfta_nb.figures.tried_points import BEST, Points, Scale, color_map, jitter, label, norm_of, points_of
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS = 5
_SPREAD = 0.012
"""Lines through one value of a category are drawn this far apart at most, in heights of the figure."""


def parallel_coordinates(history: History, metric: str | None = None, *, log: Collection[str] = ()) -> Figure:
    """Every configuration as a line through its values on all axes that vary, and through its result.

    Lines are coloured by the result, better ones above worse ones; the best is drawn in vermilion. Seeds are averaged.

    Args:
        history: the run.
        metric: one of `history.metrics`, at the best epoch; by default the monitored one.
        log: axes that are logarithmic, beside those whose values show it.

    Returns:
        A figure as wide as it has axes.

    Raises:
        StudyError: nothing finite to draw, fewer than two axes that vary, or an unknown metric.
    """
    points = points_of(history, metric, log, fewest=2)
    figure = figure_of(min(14.0, 2.4 + 1.5 * len(points.scales)), 4.2)
    axes = figure.add_subplot()
    low, high = min(points.values), max(points.values)
    result = Scale(points.metric, (), False, low, high)
    norm, shades = norm_of(points.values), color_map()
    alpha = max(0.25, min(0.9, 12 / len(points.tried)))
    for place, value in enumerate(points.values):
        best = points.maximize is not None and place == len(points.tried) - 1
        heights = [_height(points, scale, place) for scale in points.scales]
        heights.append(result.share(value))
        style: dict[str, Any] = {"color": shades(norm(value)), "alpha": alpha, "linewidth": 1.2, "zorder": 2}
        if best:
            style = {"color": BEST, "linewidth": 2.4, "zorder": 4}
        _line(axes, heights, style)
    for x, scale in enumerate((*points.scales, result)):
        _ruler(axes, x, scale)
    axes.set(xlim=(-0.35, len(points.scales) + 0.35), ylim=(-0.06, 1.06), yticks=[])
    names = [plain(scale.name, 18) for scale in points.scales] + [plain(label(points.metric), 24)]
    axes.set_xticks(range(len(names)), names, color=INK)
    axes.tick_params(length=0, pad=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _height(points: Points, scale: Scale, place: int) -> float:
    if not points.has(place, scale.name):
        return math.nan
    share = scale.share(points.tried[place].config.get(scale.name))
    return share + (_SPREAD * jitter(place) if scale.labels else 0.0)


def _line(axes: Axes, heights: list[float], style: dict[str, Any]) -> None:
    """A curve that crosses each ruler level; with a gap where a value is missing."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    vertices: list[tuple[float, float]] = []
    codes: list[Any] = []
    for x, (left, right) in enumerate(itertools.pairwise(heights)):
        if math.isfinite(left) and math.isfinite(right):
            vertices += [(x, left), (x + 0.4, left), (x + 0.6, right), (x + 1, right)]
            codes += [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    if vertices:
        axes.add_patch(PathPatch(Path(vertices, codes), fill=False, capstyle="round", **style))


def _ruler(axes: Axes, x: int, scale: Scale) -> None:
    """A vertical axis with its ticks."""
    axes.plot([x, x], [0, 1], color=MUTED, linewidth=1.0, zorder=3)
    for share, text in _ticks(scale):
        axes.plot([x - 0.02, x + 0.02], [share, share], color=MUTED, linewidth=1.0, zorder=3)
        axes.text(x - 0.05, share, text, ha="right", va="center", fontsize=8, color=INK, zorder=5,
                  bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8})  # fmt: skip


def _ticks(scale: Scale) -> list[tuple[float, str]]:
    from matplotlib.ticker import LogLocator, MaxNLocator

    if scale.labels:
        step = math.ceil(len(scale.labels) / (2 * _TICKS))
        return [(scale.low if scale.high == scale.low else i / scale.high, plain(scale.labels[i], 14))
                for i in range(0, len(scale.labels), step)]  # fmt: skip
    if scale.few:
        return [(scale.share(v), f"{v:.4g}") for v in scale.few]
    if scale.log:
        found = LogLocator(10, numticks=_TICKS + 1).tick_values(scale.low, scale.high)
        inside = [v for v in found if scale.low <= v <= scale.high]
        if len(inside) < 2:
            inside = [scale.low, scale.high]
    else:
        found = MaxNLocator(_TICKS, steps=[1, 2, 2.5, 5, 10]).tick_values(scale.low, scale.high)
        inside = [v for v in found if scale.low <= v <= scale.high]
    return [(scale.share(float(v)), f"{v:.4g}") for v in inside]
