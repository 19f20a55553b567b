"""What the Workbench draws in the browser: configurations of a run with their values, colours and members, as JSON.

Members that differ in their seed only are one configuration. Everything that can be selected carries the ids of its
members, by which curves, rows and figures select the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.figures import colors
from hfta_nb.figures.bands import points_of as band_of
from hfta_nb.figures.tried_points import SEEDS, Points, Scale, jitter, limits, points_of
from hfta_nb.figures.tried_points import label as metric_label
from hfta_nb.records.events import Json
from hfta_nb.records.history import History
from hfta_nb.search.averages import Average, averages
from hfta_nb.search.grid import show

Data = dict[str, Any]

MOST_VALUES = 12
"""Of more values of an axis than this, neighbours are put together."""
_SPREAD = 0.012
_RANGE = 100.0


def parallel(history: History, log: Collection[str], color_by: str) -> Data:
    """Rulers of the axes and of the metric, and a line through them for each configuration."""
    points = points_of(history, None, log, fewest=1)
    low, high = limits(points.values)
    low, high = max(low, min(points.values)), min(high, max(points.values))
    result = _result(points.values, low, high, metric_label(points.metric))
    scheme = colors.Scheme(list(history.members.values()), history.run.axes if history.run else {}, color_by)
    names = [scale.name for scale in points.scales]
    lines = []
    for place, (one, value) in enumerate(zip(points.tried, points.values, strict=True)):
        at = [_height(points, scale, place) for scale in points.scales]
        at.append(min(1.0, max(0.0, result.share(value))))
        line = {**_group(one, names), "value": _words(one, value, points.metric), "at": at}
        lines.append(line | _paint(scheme.stroke(one.members[0])) | {"best": place == len(points.tried) - 1})
    rulers = [_ruler(scale) for scale in (*points.scales, result)]
    return {"kind": "parallel", "rulers": rulers, "lines": lines, "note": _left_out(history, points)}


def importance(history: History, log: Collection[str], shares: Mapping[str, float]) -> Data:
    """How much each axis decides, and what its values have come to on average."""
    points = points_of(history, None, log)
    shade = _shades(points.values)
    axes = []
    for name, share in shares.items():
        values = []
        for label, chosen in _parts(points, points.scale(name, "axis")):
            mean = statistics.fmean(points.values[place] for place in chosen)
            ids = [m.id for place in chosen for m in points.tried[place].members]
            text = f"{name} {label}: {metric_label(points.metric)} {mean:.4g}, mean over {len(chosen)}"
            values.append({"label": label, "ids": ids, "title": text, **_paint(shade(mean))})
        axes.append({"name": name, "share": share, "values": values})
    metric = metric_label(points.metric)
    return {"kind": "importance", "metric": metric, "axes": axes, "note": _left_out(history, points)}


def heat_map(history: History, log: Collection[str], x: str, y: str) -> Data:
    """The mean of the metric for each pair of values of two axes."""
    points = points_of(history, None, log, fewest=2)
    columns, rows = (_parts(points, points.scale(name, where)) for name, where in ((x, "across"), (y, "up")))
    if x == y:
        others = ", ".join(scale.name for scale in points.scales if scale.name != x)
        raise StudyError("the axis of the other direction", where="up", got=y, accepted=others)
    found = {}
    for i, (_, above) in enumerate(columns):
        for j, (_, beside) in enumerate(rows):
            chosen = sorted(set(above) & set(beside))
            if chosen:
                found[i, j] = chosen
    means = {place: statistics.fmean(points.values[k] for k in chosen) for place, chosen in found.items()}
    shade = _shades(list(means.values()))
    best = (max if points.maximize else min)(means, key=means.__getitem__) if means else None
    cells = []
    for (i, j), chosen in found.items():
        ids = [m.id for k in chosen for m in points.tried[k].members]
        text = f"{x} {columns[i][0]}, {y} {rows[j][0]}: {metric_label(points.metric)} {means[i, j]:.4g}"
        more = f", mean over {len(chosen)}" if len(chosen) > 1 else ""
        cell = {"column": i, "row": j, "ids": ids, "text": f"{means[i, j]:.3g}", "title": text + more}
        cells.append(cell | _paint(shade(means[i, j])) | {"best": (i, j) == best})
    names = {"x": x, "y": y, "columns": [label for label, _ in columns], "rows": [label for label, _ in rows]}
    metric = metric_label(points.metric)
    return {"kind": "heat_map", "metric": metric, **names, "cells": cells, "note": _left_out(history, points)}


def seeds(history: History, color_by: str) -> Data:
    """The mean curve of each configuration over its seeds, and the standard deviation around it.

    Raises:
        StudyError: the run has one seed.
    """
    run = history.run
    over = [name for name in colors.swept(run.axes) if name in SEEDS] if run else []
    if run is None or not over:
        remedy = "sweep the axis seed, or give folds=5"
        raise StudyError(
            "one seed and one fold was trained with: there is no mean", where="curves over seeds", remedy=remedy
        )
    configs = sorted(averages(history, over), key=lambda one: one.members[0].id)
    firsts = [one.members[0] for one in configs]
    swept = {name: run.axes[name] for name in colors.swept(run.axes) if name not in over}
    scheme = colors.Scheme(firsts, swept, color_by)
    bands = []
    for place, one in enumerate(configs):
        points = band_of(one, run.monitor, "epoch")
        stroke = colors.member(place) if scheme.axis is None else scheme.stroke(firsts[place])
        columns = dict(zip(("epochs", "means", "deviations"), map(list, zip(*points, strict=True)), strict=False))
        if points:
            bands.append(
                {**_group(one, list(swept)), "of": len(one.members), **columns, **_paint(stroke), "dash": stroke.dash}
            )
    return {"kind": "seeds", "metric": metric_label(run.monitor), "bands": bands, "note": ""}


def _group(one: Average, names: Sequence[str]) -> Data:
    """The members of a configuration, and its name: the values of these axes."""
    varied = Average({name: one.config[name] for name in names if name in one.config}, one.members)
    number_of = f"#{one.members[0].id} " if len(one.members) == 1 else ""
    return {"ids": [m.id for m in one.members], "label": number_of + varied.label}


def _height(points: Points, scale: Scale, place: int) -> float | None:
    if not points.has(place, scale.name):
        return None
    share = scale.share(points.tried[place].config.get(scale.name))
    return share + (_SPREAD * jitter(place) if scale.labels else 0.0)


def _result(values: Sequence[float], low: float, high: float, name: str = "") -> Scale:
    """From `low` to `high`, or by all values' logarithms where they differ by a factor of more than 100."""
    log = min(values) > 0 and max(values) > _RANGE * min(values)
    return Scale(name, (), log, *((min(values), max(values)) if log else (low, high)))


def _ruler(scale: Scale) -> Data:
    low, high = (math.log10(v) for v in (scale.low, scale.high)) if scale.log else (scale.low, scale.high)
    few = [[scale.share(v), show(v)] for v in scale.few]
    few += [[place / scale.high, label] for place, label in enumerate(scale.labels)]
    return {"name": scale.name, "log": scale.log, "low": low, "high": high, "few": few}


def _parts(points: Points, scale: Scale) -> list[tuple[str, list[int]]]:
    """The values of an axis, or neighbours of them, and the places of the configurations that have them."""
    there = [place for place in range(len(points.tried)) if points.has(place, scale.name)]
    at = {place: scale.at(points.tried[place].config.get(scale.name)) for place in there}
    distinct = sorted(set(at.values()))
    size = math.ceil(len(distinct) / MOST_VALUES) if not scale.labels else 1
    found = []
    for first in range(0, len(distinct), size):
        low, high = distinct[first], distinct[min(first + size, len(distinct)) - 1]
        text = _value(points, scale, low) if low == high else f"{low:.2g} to {high:.2g}"
        found.append((text, [place for place in there if low <= at[place] <= high]))
    return found


def _value(points: Points, scale: Scale, at: float) -> str:
    return scale.labels[int(at)] if scale.labels else show(int(at) if at.is_integer() else at)


def _shades(values: Sequence[float]) -> Callable[[float], colors.Stroke]:
    """The colour of a value among these."""
    scale = _result(values, *limits(values)) if values else Scale("", (), False, 0.0, 1.0)
    return lambda value: colors.sequential(min(1.0, max(0.0, scale.share(value))))


def _words(one: Average, value: float, metric: str) -> str:
    more = f", mean of {len(one.members)}" if len(one.members) > 1 else ""
    return f"{metric_label(metric)} {value:.4g}{more}"


def _left_out(history: History, points: Points) -> str:
    """How many members are not drawn, because they have no finite value."""
    lost = sum(len(one.members) for one in averages(history, ())) - sum(len(one.members) for one in points.tried)
    return f"{lost} without a finite {metric_label(points.metric)}" if lost else ""


def _paint(stroke: colors.Stroke) -> dict[str, Json]:
    return {"light": stroke.light, "dark": stroke.dark}
