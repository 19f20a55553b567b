"""Mean curves of members that differ in one axis only, with bands of one standard deviation to each side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.figures.canvas import plain
from hfta_nb.figures.drawing import X_LABELS, color_bar, dress, legend, place_ticks, say
from hfta_nb.records.history import History
from hfta_nb.search.averages import Average, averages

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float, float]]
"""Positions, means and standard deviations of a curve (0 for one value)."""


def draw_bands(
    axes: Axes,
    history: History,
    metric: str,
    over: str | Sequence[str],
    x_axis: str,
    log_x: bool,
    log_y: bool,
    room: int,
) -> None:
    """One line and band per configuration; see `hfta_nb.figures.curves`."""
    if x_axis not in X_LABELS or x_axis == "time":
        raise HftaError("no axis for means", where="x_axis", got=x_axis, accepted="epoch, step")
    if history.run is not None and metric not in history.metrics:
        raise HftaError("the run has no such metric", where="metric", got=metric, accepted=", ".join(history.metrics))
    entries = []
    found = averages(history, over) if history.members else []
    many = len(found) > colors.MAX_LEGEND
    swept = {n: v for n, v in history.run.axes.items() if n in found[0].config} if history.run and many else {}
    scheme = colors.Scheme([a.members[0] for a in found], swept)
    for place, average in enumerate(sorted(found, key=lambda a: a.members[0].id)):
        points = points_of(average, metric, x_axis)
        if not points:
            continue
        xs, means, deviations = (list(column) for column in zip(*points, strict=True))
        stroke = colors.member(place) if scheme.axis is None else scheme.stroke(average.members[0])
        (line,) = axes.plot(
            xs,
            means,
            color=stroke.light,
            linestyle=(0, stroke.dash) if stroke.dash else "-",
            linewidth=1.0 if many else 1.6,
            marker="o" if len(xs) == 1 else None,
            zorder=3,
        )
        low = [m - d for m, d in zip(means, deviations, strict=True)]
        high = [m + d for m, d in zip(means, deviations, strict=True)]
        axes.fill_between(xs, low, high, color=stroke.light, alpha=0.08 if many else 0.18, linewidth=0, zorder=2)
        entries.append((line, plain(f"{average.label} (of {len(average.members)})")))
    name = metric.replace("val_", "validation ").replace("_", " ")
    dress(axes, f"{name}, mean \u00b1 std", X_LABELS[x_axis])
    place_ticks(axes, history, x_axis)
    if not entries:
        say(axes, f"no points of {plain(metric)} yet" if found else "no run yet")
        return
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    if scheme.axis is not None:
        color_bar(axes, scheme.axis)
    elif not many:
        legend(axes, entries, room)


def points_of(average: Average, metric: str, x_axis: str) -> Points:
    """Mean and standard deviation of the members' curves, at points where any is finite."""
    values: dict[float, list[float]] = {}
    for member in average.members:
        curve = member.curves.get(metric)
        if curve is not None:
            xs = curve.epochs if x_axis == "epoch" else [float(step) for step in curve.steps]
            for x, value in zip(xs, curve.values, strict=True):
                if math.isfinite(value):
                    values.setdefault(x, []).append(value)
    return [
        (x, statistics.fmean(many), statistics.stdev(many) if len(many) > 1 else 0.0)
        for x, many in sorted(values.items())
    ]
