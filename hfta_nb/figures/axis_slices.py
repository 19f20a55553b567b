"""Slices: the result over each axis by itself."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import dress
from hfta_nb.figures.tried_points import BEST, POINT, Points, Scale, jitter, label, limits, points_of, pruned
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4


def slices(history: History, metric: str | None = None, *, log: Collection[str] = ()) -> Figure:
    """The result of every configuration over each axis that varies, side by side.

    Configurations that were pruned or stopped are rings, the best is vermilion. Outliers are triangles at the edge.
    Seeds are averaged.

    Args:
        history: the run.
        metric: one of `history.metrics`, at the best epoch; by default the monitored one.
        log: axes that are logarithmic, beside those whose values show it.

    Returns:
        A figure with a panel for each axis, four in a row.

    Raises:
        StudyError: nothing finite to draw, no axis that varies, or an unknown metric.
    """
    points = points_of(history, metric, log)
    count = len(points.scales)
    columns = min(_COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = figure_of(1.0 + 2.9 * columns, 0.5 + 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    low, high = limits(points.values)
    room = 0.06 * (high - low)
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_visible(False)
            continue
        _panel(axes, points, points.scales[place], (low, high), first=place % columns == 0)
        axes.set_ylim(low - room, high + room)
    return figure


def _panel(axes: Axes, points: Points, scale: Scale, ends: tuple[float, float], first: bool) -> None:
    low, high = ends
    size = max(14.0, min(42.0, 1600 / len(points.tried)))
    kinds: dict[tuple[str, bool, bool], list[tuple[float, float]]] = {}
    for place, (one, value) in enumerate(zip(points.tried, points.values, strict=True)):
        if not points.has(place, scale.name):
            continue
        x = scale.at(one.config.get(scale.name)) + (0.22 * jitter(place) if scale.labels else 0.0)
        best = points.maximize is not None and place == len(points.tried) - 1
        marker = "^" if value > high else "v" if value < low else "o"
        kinds.setdefault((marker, pruned(one) and not best, best), []).append((x, min(max(value, low), high)))
    for (marker, ring, best), places in kinds.items():
        color = BEST if best else POINT
        axes.scatter(
            [x for x, _ in places],
            [y for _, y in places],
            s=1.6 * size if best else size,
            marker=marker,
            facecolors="white" if ring else color,
            edgecolors=color,
            linewidths=1.0,
            alpha=1.0 if best else 0.75,
            zorder=4 if best else 3,
            clip_on=False,
        )
    dress(axes, label(points.metric) if first else "", plain(scale.name))
    scale.dress(axes, "x")
    if scale.labels and max(map(len, scale.labels)) * len(scale.labels) > 24:
        axes.tick_params(axis="x", rotation=40)
