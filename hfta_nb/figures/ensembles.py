"""Ensembles: their scores over the number of members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hfta_nb.errors import StudyError
from hfta_nb.figures.canvas import figure_of
from hfta_nb.figures.drawing import INK, dress
from hfta_nb.figures.tried_points import BEST, POINT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"log_loss": "log loss", "ece": "calibration error", "mse": "squared error", "mae": "absolute error"}


def ensemble(curves: Mapping[str, Sequence[float]], alone: Mapping[str, float], chosen: int) -> Figure:
    """The scores of an ensemble over its number of members, with those of the best single member as lines.

    Args:
        curves: by score, its values with 1, 2, ... members.
        alone: those of the best member.
        chosen: the number of members that were chosen; a ring.

    Returns:
        A figure of 3.2 inches width per score, and 3 inches height.

    Raises:
        StudyError: there is no score.
    """
    if not curves:
        raise StudyError("no scores", where="ensemble")
    figure = figure_of(3.2 * len(curves), 3.0)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, values) in zip(panels, curves.items(), strict=True):
        axes.axhline(alone[name], color=INK, linewidth=1.0, linestyle=":", label="best member")
        axes.plot(range(1, len(values) + 1), values, color=BEST, linewidth=1.5, label="ensemble")
        axes.scatter([chosen], [values[chosen - 1]], s=42, zorder=3, facecolors="white", edgecolors=POINT)
        axes.locator_params(axis="x", integer=True)
        dress(axes, _NAMES.get(name, name), "members taken")
    panels[0].legend(frameon=False, fontsize=8)
    return figure
