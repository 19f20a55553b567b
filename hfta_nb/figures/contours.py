"""Contours: the result over two axes."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress
from hfta_nb.figures.points import BEST, Points, Scale, color_map, jitter, label, norm_of, points_of
from hfta_nb.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = 12


def contour(history: History, a: str, b: str, metric: str | None = None, *, log: Collection[str] = ()) -> Figure:
    """The result over two axes: points where configurations lie, and between them, linearly interpolated, a surface.

    There is no surface where an axis has no numbers, nor outside of the points. Configurations at one place (other axes
    vary, or seeds) count by their mean. The best configuration is ringed.

    Args:
        history: the run.
        a, b: the axes, from left to right and from bottom to top.
        metric: one of `history.metrics`, at the best epoch; by default the monitored one.
        log: axes that are logarithmic, beside those whose values show it.

    Returns:
        A figure of 6 by 4.6 inches.

    Raises:
        StudyError: an axis doesn't vary, both are the same, nothing is finite, or an unknown metric.
    """
    points = points_of(history, metric, log, fewest=2)
    across, up = points.scale(a, "a"), points.scale(b, "b")
    if a == b:
        others = ", ".join(s.name for s in points.scales if s.name != a)
        raise StudyError("the axis of the other direction", where="b", got=b, accepted=others)
    places = _means(points, across, up)
    if not places:
        raise StudyError("no configuration has both axes", where="figure", got=[a, b])
    figure = figure_of(6.0, 4.6)
    axes = figure.add_subplot()
    dress(axes, plain(up.name), plain(across.name))
    norm, shades = norm_of(list(places.values())), color_map()
    across.dress(axes, "x")
    up.dress(axes, "y")
    if not across.labels and not up.labels:
        _surface(axes, places, (across, up), norm, shades)
    drawn = axes.scatter(
        [x for x, _ in places],
        [y for _, y in places],
        c=list(places.values()),
        cmap=shades,
        norm=norm,
        s=90 if across.labels or up.labels else max(14.0, min(46.0, 1800 / len(places))),
        edgecolors="white",
        linewidths=0.9,
        zorder=3,
    )
    _ring(axes, points, across, up)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.06, pad=0.03, extend=_extend(norm, list(places.values())))
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(labelcolor=INK, labelsize=8)
    bar.set_label(plain(label(points.metric)), color=INK)
    return figure


def _means(points: Points, across: Scale, up: Scale) -> dict[tuple[float, float], float]:
    found: dict[tuple[float, float], list[float]] = {}
    for place, value in enumerate(points.values):
        if points.has(place, across.name) and points.has(place, up.name):
            found.setdefault(_place(points, place, across, up), []).append(value)
    return {place: statistics.fmean(values) for place, values in found.items()}


def _place(points: Points, place: int, across: Scale, up: Scale) -> tuple[float, float]:
    """Where a configuration lies; those of a category that share no number with it stand side by side."""
    config = points.tried[place].config
    x, y = across.at(config.get(across.name)), up.at(config.get(up.name))
    if across.labels and not up.labels:
        x += 0.16 * jitter(place)
    if up.labels and not across.labels:
        y += 0.16 * jitter(place)
    return x, y


def _surface(
    axes: Axes, places: dict[tuple[float, float], float], scales: tuple[Scale, Scale], norm: Any, shades: Any
) -> None:
    from matplotlib.tri import Triangulation

    across, up = scales
    xs, ys = [x for x, _ in places], [y for _, y in places]
    # Triangles are made as they are seen: in shares of each axis, logarithmic ones too.
    seen = [across.share(x) for x in xs], [up.share(y) for y in ys]
    try:
        triangles = Triangulation(*seen).triangles
    except (RuntimeError, ValueError):  # fewer than three points, or all on one line
        return
    axes.tricontourf(
        xs, ys, triangles, list(places.values()), levels=_LEVELS, cmap=shades, norm=norm, alpha=0.75, extend="both"
    )


def _ring(axes: Axes, points: Points, across: Scale, up: Scale) -> None:
    best = len(points.tried) - 1
    if points.maximize is not None and points.has(best, across.name) and points.has(best, up.name):
        x, y = _place(points, best, across, up)
        axes.scatter([x], [y], s=170, facecolors="none", edgecolors=BEST, linewidths=2, zorder=4)


def _extend(norm: Any, values: list[float]) -> str:
    below, above = min(values) < norm.vmin, max(values) > norm.vmax
    return "both" if below and above else "min" if below else "max" if above else "neither"
