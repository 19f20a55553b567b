"""The history of a search: the best value so far against trials and against time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of
from hfta_nb.figures.drawing import dress
from hfta_nb.figures.tried_points import BEST, POINT, label, limits, metric_of
from hfta_nb.records import events as ev
from hfta_nb.records.history import History, Member

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CUT = (ev.PRUNED, ev.STOPPED, ev.DIVERGED, *sorted(ev.FAILURES))
_UNITS = (("h", 7200.0, 3600.0), ("min", 120.0, 60.0), ("s", 0.0, 1.0))
"""By the longest time in seconds: the unit, from what on, and its seconds."""


def best_so_far(history: History) -> Figure:
    """Each member's best value of the monitored metric, and the best of all so far, against members and against time.

    Members that were pruned, or ended before their time otherwise, are rings. Outliers are at the edge.

    Args:
        history: the run.

    Returns:
        A figure of 9 by 3.2 inches with two panels.

    Raises:
        StudyError: the study has not run yet, or no member has a finite value.
    """
    metric = metric_of(history, None)
    members = [m for m in history.members.values() if m.state != ev.DELETED and math.isfinite(m.best_value)]
    if not members:
        remedy = "wait until members have been validated" if history.state in (ev.RUNNING, ev.PAUSED) else ""
        raise StudyError(f"no member has a finite {metric}", where="figure", remedy=remedy)
    figure = figure_of(9.0, 3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    better: Callable[[float, float], float] = max if history.maximize else min
    _of_members(left, members, better)
    _of_time(right, _improvements(history, members, metric, better), max(history.took_s, 1e-9))
    low, high = limits([m.best_value for m in members])
    room = 0.06 * (high - low)
    left.set_ylim(low - room, high + room)
    dress(left, label(metric), "member")
    return figure


def _of_members(axes: Axes, members: Sequence[Member], better: Callable[[float, float], float]) -> None:
    for ring in (True, False):
        shown = [m for m in members if (m.state in _CUT) is ring]
        axes.scatter([m.id for m in shown], [m.best_value for m in shown], s=16, zorder=3,
                     facecolors="white" if ring else POINT, edgecolors=POINT)  # fmt: skip
    best = list(itertools.accumulate((m.best_value for m in members), better))
    axes.step([m.id for m in members], best, where="post", color=BEST, linewidth=1.5)
    axes.locator_params(axis="x", integer=True)


def _of_time(axes: Axes, found: Sequence[tuple[float, float]], end_s: float) -> None:
    unit, _, seconds = next(u for u in _UNITS if end_s >= u[1])
    times = [time_s / seconds for time_s, _ in found] + [end_s / seconds]
    axes.step(times, [value for _, value in found] + [found[-1][1]], where="post", color=BEST, linewidth=1.5)
    axes.set_xlim(0.0, times[-1])
    dress(axes, "", f"time, {unit}")


def _improvements(
    history: History, members: Sequence[Member], metric: str, better: Callable[[float, float], float]
) -> list[tuple[float, float]]:
    """The times, in seconds of the run without pauses, at which a member was better than all before, with its value."""
    paused = [(begin, end) for begin, end in history.pauses if end is not None]
    points = sorted(
        (time_s, value)
        for m in members
        if metric in m.curves
        for time_s, value in zip(m.curves[metric].times, m.curves[metric].values, strict=True)
        if math.isfinite(time_s) and math.isfinite(value)
    )
    found: list[tuple[float, float]] = []
    for time_s, value in points:
        if not found or better(value, found[-1][1]) != found[-1][1]:
            waited_s = sum(min(end, time_s) - begin for begin, end in paused if begin < time_s)
            at_s = max(0.0, time_s - history.begin_s - waited_s)
            found = [*(point for point in found if point[0] < at_s), (at_s, value)]  # the best of each moment
    return found or [(0.0, members[0].best_value)]
