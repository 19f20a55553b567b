"""Contours: the result over two axes."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress
from hfta_nb.figures.tried_points import BEST, Points, Scale, color_map, jitter, label, norm_of, points_of
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS, _CELLS = 14, 80
_SMOOTH = 24
"""With more points than this, the surface is a mean of those nearby: other axes vary as well."""


def contour(history: History, a: str, b: str, metric: str | None = None, *, log: Collection[str] = ()) -> Figure:
    """The result over two axes: points where configurations lie, and a surface between them.

    The surface is interpolated linearly; between more than 24 points it is a mean of those nearby. There is none where
    an axis has no numbers, nor outside of the points. Configurations at one place (other axes vary, or seeds) count by
    their mean. The best configuration is ringed.

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
        _surface(axes, places, (across, up), norm, color_map(pale=0.3))
        axes.use_sticky_edges = False
        axes.margins(0.04)
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
        clip_on=False,
    )
    _ring(axes, points, across, up)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.06, pad=0.03, extend=_extend(norm, list(places.values())))
    bar.outline.set_visible(False)
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
    """Colour what lies between the points; as it is seen, so in shares of each axis, logarithmic ones too."""
    import numpy as np
    from matplotlib.tri import LinearTriInterpolator, Triangulation

    across, up = scales
    xs, ys = np.array([across.share(x) for x, _ in places]), np.array([up.share(y) for _, y in places])
    values = np.array(list(places.values()))
    try:
        linear = LinearTriInterpolator(Triangulation(xs, ys), values)
    except (RuntimeError, ValueError):  # fewer than three points, or all on one line
        return
    sides = np.meshgrid(np.linspace(0, 1, _CELLS), np.linspace(0, 1, _CELLS))
    surface = linear(*sides)
    if len(places) > _SMOOTH:
        width = min(0.15, max(0.05, 0.7 / len(places) ** 0.5))
        far = (sides[0][..., None] - xs) ** 2 + (sides[1][..., None] - ys) ** 2
        near = np.exp(-far / (2 * width**2)) + 1e-12
        surface = np.ma.array((near * values).sum(-1) / near.sum(-1), mask=np.ma.getmaskarray(surface))
    grids = across.value(sides[0]), up.value(sides[1])
    levels = np.linspace(norm.vmin, norm.vmax, _LEVELS)
    if type(norm).__name__ == "LogNorm":
        levels = np.geomspace(norm.vmin, norm.vmax, _LEVELS)
    axes.contourf(*grids, surface, levels=levels, cmap=shades, norm=norm, extend="both", zorder=1)
    axes.set_axisbelow(False)
    axes.grid(visible=False)


def _ring(axes: Axes, points: Points, across: Scale, up: Scale) -> None:
    best = len(points.tried) - 1
    if points.maximize is not None and points.has(best, across.name) and points.has(best, up.name):
        x, y = _place(points, best, across, up)
        axes.scatter([x], [y], s=170, facecolors="none", edgecolors=BEST, linewidths=2, zorder=4)


def _extend(norm: Any, values: list[float]) -> str:
    below, above = min(values) < norm.vmin, max(values) > norm.vmax
    return "both" if below and above else "min" if below else "max" if above else "neither"
