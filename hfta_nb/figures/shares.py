"""Importances: bars, one for each axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress
from hfta_nb.figures.tried_points import POINT, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def importances(shares: Mapping[str, float], metric: str) -> Figure:
    """The share of each axis in what makes a configuration one of the best; the largest on top.

    Args:
        shares: by axis, from 0 to 1.
        metric: what the configurations were compared by.

    Returns:
        A figure of 6 inches width, as high as it has axes.

    Raises:
        StudyError: there is no axis.
    """
    if not shares:
        raise StudyError("no axis varies", where="importances")
    rows = sorted(shares.items(), key=lambda pair: pair[1])
    figure = figure_of(6.0, 1.1 + 0.42 * len(rows))
    axes = figure.add_subplot()
    bars = axes.barh(
        [plain(name, 24) for name, _ in rows], [share for _, share in rows], color=POINT, height=0.62, zorder=3
    )
    axes.bar_label(bars, [f"{100 * share:.0f}%" for _, share in rows], padding=4, color=INK, fontsize=9)
    dress(axes, "", f"importance for the best {plain(label(metric))}")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.12 * max(max(shares.values()), 0.1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    return figure
