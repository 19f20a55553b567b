"""Averages over members that differ in one axis only, most often the seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hfta_nb.errors import StudyError
from hfta_nb.errors.border import TEXTS, takes
from hfta_nb.records import events as ev
from hfta_nb.records.events import Json
from hfta_nb.records.history import History, Member
from hfta_nb.search.grid import show


@dataclass(frozen=True)
class Average:
    """Members that differ only in the axes that are averaged over.

    Attributes:
        config: the values of all other axes.
        members: in the order of the grid.
    """

    config: dict[str, Json]
    members: tuple[Member, ...]

    @property
    def label(self) -> str:
        """For example ``lr=0.001, width=16``."""
        return ", ".join(f"{name}={show(value)}" for name, value in self.config.items()) or "all members"

    @property
    def lost(self) -> int:
        """How many members have no finite best value, because they diverged, failed or have not been validated yet."""
        return sum(not math.isfinite(m.best_value) for m in self.members)

    def mean(self, metric: str) -> float:
        """Of the metric at each member's best epoch, as for `std` and `count`; NaN where none is finite."""
        values = self._values(metric)
        return statistics.fmean(values) if values else math.nan

    def std(self, metric: str) -> float:
        """The standard deviation of a sample (by n - 1); NaN of fewer than two."""
        values = self._values(metric)
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def bound(self, metric: str, maximize: bool) -> float:
        """The mean's bound on its worse side, one standard error away: the lower confidence bound where more is better;
        the mean of a single value."""
        values = self._values(metric)
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return self.mean(metric) - error if maximize else self.mean(metric) + error

    def by(self, axis: str, metric: str) -> dict[Json, float]:
        """The mean of the members with each value of an axis; without values of which none is finite."""
        names = dict.fromkeys(m.config[axis] for m in self.members)
        parts = {name: Average({}, tuple(m for m in self.members if m.config[axis] == name)) for name in names}
        return {name: part.mean(metric) for name, part in parts.items() if part.count(metric)}

    def count(self, metric: str) -> int:
        """How many members have a finite value."""
        return len(self._values(metric))

    def _values(self, metric: str) -> list[float]:
        return [v for v in (m.at_best(metric) for m in self.members) if math.isfinite(v)]


def resampled_t_test(differences: Sequence[float], ratio: float) -> float:
    """The two-sided p-value of the mean of paired differences over splits of the same samples, which overlap.

    Args:
        differences: of each split, at least two.
        ratio: held-out samples by training samples.

    Source: Nadeau and Bengio, Inference for the Generalization Error, Machine Learning 52 (2003): a t-test of J - 1
    degrees of freedom, with the variance of the mean ``(1 / J + ratio) * s^2``.
    """
    from scipy.stats import t

    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    count = len(differences)
    return float(2 * t.sf(abs(mean) / (spread * math.sqrt(1 / count + ratio)), count - 1))


def over_folds(one: Average, other: Average, metric: str, ratio: float) -> float:
    """`resampled_t_test` of two configurations, by the mean of each fold; NaN if fewer than two folds have both.

    Args:
        one, other: averages over "fold", and perhaps over seeds.
        metric: at each member's best epoch.
        ratio: see `resampled_t_test`.
    """
    mine, theirs = one.by("fold", metric), other.by("fold", metric)
    differences = [mine[fold] - theirs[fold] for fold in mine if fold in theirs]
    return resampled_t_test(differences, ratio) if len(differences) > 1 else math.nan


@takes(StudyError, over=TEXTS)
def averages(history: History, over: str | Sequence[str]) -> list[Average]:
    """Group the members of a run by all axes except `over`, best mean of the monitored metric first.

    A configuration that lost a member (see `Average.lost`) comes after all that lost none.

    Raises:
        StudyError: an axis is not in the grid.
    """
    names = (over,) if isinstance(over, str) else tuple(over)
    axes = tuple(history.run.axes) if history.run else ()
    for name in names:
        if name not in axes:
            swept = "sweep it: grid={..., " + f'"{name}": ' + "hfta_nb.search.grid.seeds(4)}"
            remedy = {"seed": swept, "fold": "give Study(..., folds=5)"}.get(name, "")
            raise StudyError("not an axis of the grid", where="over", got=name, accepted=", ".join(axes), remedy=remedy)
    found: dict[tuple[tuple[str, str], ...], list[Member]] = {}
    for member in history.members.values():
        if member.state == ev.DELETED:
            continue
        rest = tuple((name, repr(value)) for name, value in member.config.items() if name not in names)
        found.setdefault(rest, []).append(member)
    rows = [Average({k: v for k, v in m[0].config.items() if k not in names}, tuple(m)) for m in found.values()]
    monitor = history.run.monitor if history.run else ""

    def key(row: Average) -> tuple[bool, int, float]:
        mean = row.mean(monitor)
        return math.isnan(mean), row.lost, 0.0 if math.isnan(mean) else -mean if history.maximize else mean

    return sorted(rows, key=key)
