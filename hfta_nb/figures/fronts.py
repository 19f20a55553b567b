"""Pareto fronts: configurations that no other beats in every objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress
from hfta_nb.figures.tried_points import BEST, FAINT, label, metric_of
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_OBJECTIVES = 4
_MOST_NAMES = 8
_RANGE = 30.0
Values = dict[int, tuple[float, ...]]


def pareto(
    history: History, objectives: Sequence[tuple[str, bool]], costs: Mapping[str, Mapping[int, float]] | None = None
) -> Figure:
    """The members of a run by two objectives (or by all pairs of three or four); the Pareto front in vermilion.

    Args:
        history: the run.
        objectives: names of metrics, at the best epoch, or of `costs`; and whether more is better.
        costs: by name, what is no metric, by member.

    Returns:
        A figure with a panel for each pair of objectives.

    Raises:
        StudyError: fewer than two objectives or more than four, an unknown metric, or nothing finite.
    """
    names = [name for name, _ in objectives]
    if not 2 <= len(set(names)) == len(names) <= MOST_OBJECTIVES:
        remedy = 'name them, for example study.pareto("val_accuracy", "parameters")'
        accepted = f"2 to {MOST_OBJECTIVES} different names"
        raise StudyError("a Pareto front needs several objectives", where="objectives", got=names,
                         accepted=accepted, remedy=remedy)  # fmt: skip
    values = values_of(history, names, costs or {})
    best = front(values, [more for _, more in objectives])
    pairs = list(itertools.combinations(range(len(names)), 2))
    columns = min(3, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    figure = figure_of(6.4 if len(pairs) == 1 else 1.0 + 3.6 * columns, 0.4 + (4.2 if len(pairs) == 1 else 3.4 * rows))
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (i, j) in zip(panels.flat, pairs, strict=False):
        _panel(axes, values, best, (j, i), objectives)  # the first objective upwards
    for axes in panels.flat[len(pairs) :]:
        axes.set_visible(False)
    return figure


def values_of(history: History, names: Sequence[str], costs: Mapping[str, Mapping[int, float]]) -> Values:
    """By member, the objectives of those that have all of them.

    Raises:
        StudyError: an unknown metric, or no member has them.
    """
    for name in names:
        if name not in costs:
            metric_of(history, name)
    found = {}
    for member in history.members.values():
        row = tuple(costs[n].get(member.id, math.nan) if n in costs else member.at_best(n) for n in names)
        if all(map(math.isfinite, row)):
            found[member.id] = row
    if not found:
        raise StudyError("no member has a finite value of each objective", where="figure", got=list(names))
    return found


def front(values: Values, maximize: Sequence[bool]) -> list[int]:
    """The members that none other is at least as good as in all objectives and better in one."""
    signed = {id: [-v if more else v for v, more in zip(row, maximize, strict=True)] for id, row in values.items()}

    def beats(a: list[float], b: list[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    return [id for id, row in signed.items() if not any(beats(other, row) for other in signed.values())]


def _panel(
    axes: Axes,
    values: Values,
    best: Sequence[int],
    pair: tuple[int, int],
    objectives: Sequence[tuple[str, bool]],
) -> None:
    i, j = pair
    others = [id for id in values if id not in best]
    size = max(14.0, min(42.0, 2400 / len(values)))
    axes.scatter(
        [values[m][i] for m in others], [values[m][j] for m in others], s=size, color=FAINT, alpha=0.7, zorder=2
    )
    order = sorted(best, key=lambda m: (values[m][i], values[m][j]))
    xs, ys = [values[m][i] for m in order], [values[m][j] for m in order]
    if len(objectives) == 2:
        axes.step(xs, ys, where="pre" if objectives[i][1] else "post", color=BEST, linewidth=1.2, alpha=0.7, zorder=3)
    axes.scatter(xs, ys, s=max(26.0, 1.5 * size), color=BEST, edgecolors="white", linewidths=0.6, zorder=4)
    if len(order) <= _MOST_NAMES:
        for member, x, y in zip(order, xs, ys, strict=True):
            axes.annotate(f"#{member}", (x, y), (5, 5), textcoords="offset points", fontsize=8, color=INK, zorder=5)
    dress(axes, _named(objectives[j]), _named(objectives[i]))
    for which, place in (("x", i), ("y", j)):
        column = [row[place] for row in values.values()]
        if min(column) > 0 and max(column) > _RANGE * min(column):
            getattr(axes, f"set_{which}scale")("log")
    axes.margins(0.08)


def _named(objective: tuple[str, bool]) -> str:
    name, more = objective
    return plain(f"{label(name)} ({'more' if more else 'less'} is better)")
