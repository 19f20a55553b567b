"""Configurations that were tried, as points of figures: a position on each axis, and a value."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StudyError
from hfta_nb.errors.border import TEXT, takes
from hfta_nb.figures import colors
from hfta_nb.figures.canvas import plain
from hfta_nb.records import events as ev
from hfta_nb.records.events import Json
from hfta_nb.records.history import History
from hfta_nb.search.averages import Average, averages
from hfta_nb.search.grid import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SEEDS = ("seed", "data_seed", "fold")
"""Axes that are averaged over, where others vary too."""

BEST, POINT, FAINT = colors.OKABE_ITO[3].light, colors.OKABE_ITO[0].light, "#9aa0a6"
MOST_TICKS = 9
_RANGE = 100.0
_FENCE = 1.5
_FEW = 6
_WORDS = {"time_s": "training time, s", "memory_bytes": "memory, bytes"}


@dataclass(frozen=True)
class Scale:
    """Positions on one axis: numbers as they are, anything else in a row.

    Attributes:
        name: of the axis.
        labels: of values in a row; empty for numbers.
        log: whether a numeric axis is logarithmic.
        low, high: the ends of the positions.
        few: the numbers, where there are few.
    """

    name: str
    labels: tuple[str, ...]
    log: bool
    low: float
    high: float
    few: tuple[float, ...] = ()

    def at(self, value: Json) -> float:
        """The position of a value."""
        return float(self.labels.index(show(value))) if self.labels else float(value)  # type: ignore[arg-type]

    def share(self, value: Json) -> float:
        """The position from 0 to 1."""
        at, low, high = (math.log(p) if self.log else p for p in (self.at(value), self.low, self.high))
        return (at - low) / (high - low) if high > low else 0.5

    def dress(self, axes: Axes, which: str) -> None:
        """Scale and label the "x" or "y" axis."""
        axis: Axis = getattr(axes, f"{which}axis")
        if self.labels:
            step = math.ceil(len(self.labels) / (2 * MOST_TICKS))
            places = range(0, len(self.labels), step)
            axis.set_ticks(list(places), labels=[plain(self.labels[i], 16) for i in places])
            getattr(axes, f"set_{which}lim")(self.low - 0.5, self.high + 0.5)
            return
        if self.log:
            getattr(axes, f"set_{which}scale")("log")
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            if self.high >= 10 * self.low:
                axis.set_minor_formatter(lambda value, _: "")
            else:
                axis.set_minor_formatter(lambda value, _: f"{value:g}")
        if self.few:
            axis.set_ticks(list(self.few), labels=[show(v) for v in self.few])
            axis.set_ticks([], minor=True)

    def value(self, share: Any) -> Any:
        """The position of a share from 0 to 1, or of many."""
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True)
class Points:
    """What was tried.

    Attributes:
        scales: the axes that vary.
        tried: configurations with a finite value, the best last.
        values: theirs.
        metric: what the values are.
        maximize: whether more is better; None where nobody says.
    """

    scales: tuple[Scale, ...]
    tried: tuple[Average, ...]
    values: tuple[float, ...]
    metric: str
    maximize: bool | None

    def scale(self, name: str, where: str) -> Scale:
        """The scale of an axis.

        Raises:
            StudyError: it doesn't vary, or there is no such axis.
        """
        for found in self.scales:
            if found.name == name:
                return found
        raise StudyError(
            "not an axis that varies", where=where, got=name, accepted=", ".join(s.name for s in self.scales)
        )

    def has(self, place: int, name: str) -> bool:
        """Whether a configuration has a value on an axis: those of a conditional space may not."""
        return self.tried[place].config.get(name) is not None or any(s.name == name and s.labels for s in self.scales)


def points_of(history: History, metric: str | None, log: Collection[str] = (), fewest: int = 1) -> Points:
    """The configurations of a run, each with the mean of its seeds at their best epochs.

    Args:
        history: the run.
        metric: by default the monitored one.
        log: axes that are logarithmic, beside those whose values show it.
        fewest: axes that have to vary.

    Raises:
        StudyError: the run has no such metric, nothing finite, or too few axes that vary.
    """
    metric = metric_of(history, metric)
    run = history.run
    assert run is not None  # `metric_of` has looked
    over = [n for n in colors.swept(run.axes) if n in SEEDS]
    if len(over) == len(colors.swept(run.axes)):
        over = []  # seeds are all that varies
    known = metric == run.monitor
    maximize = history.maximize if known else None
    found = [(one, one.mean(metric)) for one in averages(history, over)]
    finite = [(one, value) for one, value in found if math.isfinite(value)]
    if not finite:
        remedy = "wait until members have been validated" if history.state in (ev.RUNNING, ev.PAUSED) else ""
        raise StudyError(f"no member has a finite {metric}", where="figure", remedy=remedy)
    finite.sort(key=lambda pair: pair[1] if maximize or maximize is None else -pair[1])
    names = [n for n in colors.swept(run.axes) if n not in over]
    scales = [_scale(n, [one.config.get(n) for one, _ in finite], n in log) for n in names]
    kept = tuple(s for s in scales if s.high > s.low)
    if len(kept) < fewest:
        words = {1: "no axis varies", 2: "only one axis varies"}.get(fewest if kept else 1, "too few axes vary")
        raise StudyError(words, where="figure", got=[s.name for s in kept], accepted=f"{fewest} or more")
    return Points(kept, tuple(one for one, _ in finite), tuple(value for _, value in finite), metric, maximize)


@takes(StudyError, metric=TEXT.or_none)
def metric_of(history: History, metric: str | None) -> str:
    """A metric of the run.

    Raises:
        StudyError: it has none of this name, or there is no run yet.
    """
    if history.run is None or not history.members:
        raise StudyError("not run yet", where="figure", remedy="run the study first")
    found = metric or history.run.monitor
    if found not in history.metrics:
        accepted = ", ".join(history.metrics)
        raise StudyError("the run has no such metric", where="metric", got=metric, accepted=accepted)
    return found


def _scale(name: str, values: Sequence[Json], log: bool) -> Scale:
    there = [v for v in values if v is not None]
    numbers = [float(v) for v in there if isinstance(v, int | float) and not isinstance(v, bool)]
    if not numbers or len(numbers) < len(there):
        labels = tuple(dict.fromkeys(show(v) for v in sorted(values, key=_rank)))
        return Scale(name, labels, False, 0.0, float(len(labels) - 1))
    log = (log or colors.axis(name, numbers).log) and min(numbers) > 0
    distinct = tuple(sorted(set(numbers)))
    return Scale(name, (), log, distinct[0], distinct[-1], distinct if len(distinct) <= _FEW else ())


def _rank(value: Json) -> tuple[bool, float, str]:
    """Numbers before words, in order."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if isinstance(value, int | float) and number else 0.0, show(value)


def label(metric: str) -> str:
    """A metric or a cost in words."""
    if metric in _WORDS:
        return _WORDS[metric]
    return metric.replace("val_", "validation ").replace("train_", "training ").replace("_", " ")


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a scale on which a few outliers don't flatten the rest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= 8:
        first, third = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        reach = _FENCE * 2 * (third - first)
        if reach > 0:
            low, high = max(low, first - reach), min(high, third + reach)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def norm_of(values: Sequence[float]) -> Any:
    """The colours of values: by their logarithms where they differ by a factor of more than 100."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = min(values), max(values)
    if low > 0 and high > _RANGE * low:
        return LogNorm(low, high)
    return Normalize(*limits(values))


def color_map(pale: float = 0.0) -> Any:
    """Viridis without its brightest end, which would vanish on white; mixed with so much white."""
    from matplotlib.colors import ListedColormap, to_rgb

    shades = [to_rgb(colors.sequential(i / 255).light) for i in range(256)]
    return ListedColormap([tuple(c + pale * (1 - c) for c in shade) for shade in shades])


def jitter(place: int) -> float:
    """A small offset between -1 and 1 that tells equal points apart; the same each time."""
    return 2 * ((place * 0.6180339887498949) % 1.0) - 1


def pruned(one: Average) -> bool:
    """Whether its members ended before their time."""
    return all(member.state in (ev.PRUNED, ev.STOPPED, ev.DIVERGED, *ev.FAILURES) for member in one.members)
