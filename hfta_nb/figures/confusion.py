"""The confusion matrix of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hfta_nb.errors import HftaError
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERS = 20
"""With more classes than this, cells show no numbers."""
_FULL = "#0072b2"


def confusion_matrix(counts: Sequence[Sequence[float]], title: str = "") -> Figure:
    """Targets by their class (rows) and the class that is predicted (columns).

    A cell shows its count; its colour is the share of its row, so that a small class is seen as well as a large one.
    The label of a row has the recall of its class.

    Args:
        counts: a square of numbers, row by row.
        title: above the figure.

    Raises:
        HftaError: it is no square.
    """
    size = len(counts)
    if not size or any(len(row) != size for row in counts):
        raise HftaError("not a square of counts", where="counts", got=[len(row) for row in counts])
    side = min(7.5, 2.2 + 0.45 * size)
    figure = figure_of(side, side)
    axes = figure.add_subplot()
    shares = [[value / max(1, sum(row)) for value in row] for row in counts]
    for row, values in enumerate(shares):
        for column, share in enumerate(values):
            _cell(axes, row, column, share, counts[row][column], numbers=size <= MOST_NUMBERS)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5))
    every = range(0, size, max(1, size // MOST_NUMBERS))
    axes.set_xticks(every, [str(c) for c in every])
    axes.set_yticks(every, [f"{c} ({shares[c][c]:.0%})" if sum(counts[c]) else f"{c} (none)" for c in every])
    axes.tick_params(colors=MUTED, labelcolor=INK, length=0, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("predicted class", color=INK)
    axes.set_ylabel("class (recall)", color=INK)
    axes.set_title(plain(title), color=INK, fontsize=10)
    return figure


def _cell(axes: Axes, row: int, column: int, share: float, count: float, numbers: bool) -> None:
    from matplotlib.patches import Rectangle

    # From the colour of an empty cell on: a few errors must not look like many.
    color = ("#f1f3f4", 1.0) if not share else (_FULL, 0.15 + 0.85 * share)
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1))
    if numbers and count:
        axes.text(
            column, row, f"{count:g}", ha="center", va="center", fontsize=8, color="white" if share > 0.5 else INK
        )
