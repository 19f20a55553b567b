"""Figures of a run: curves, utilization, and a summary of both.

Each function takes a `History` and returns a `matplotlib.figure.Figure` without pyplot state, in the colours of the
live view (`hfta_nb.figures.colors`), on a light background. An empty history gives a figure that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hfta_nb.figures.bands import draw_bands
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, draw_curves, draw_utilization
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOM = 95
"""Letters in a row of the legend."""


def curves(
    history: History,
    metric: str = "val_loss",
    color_by: str | None = None,
    *,
    x_axis: str = "epoch",
    log_x: bool = False,
    log_y: bool = False,
    train: bool = True,
    over: str | Sequence[str] | None = None,
) -> Figure:
    """The curve of every member, or means of members with a band of one standard deviation to each side.

    Args:
        history: the run.
        metric: the metric to draw, one of `history.metrics`.
        color_by: the axis that sets the colour; by default each member has its own colour (with more than 12 members,
            the first axis sets it).
        x_axis: "epoch", "step" or "time".
        log_x, log_y: whether that axis is logarithmic.
        train: whether to add the training curve of a validation metric, dotted; not of means.
        over: one or several axes to average over, most often "seed". The mean at an epoch is over members with a finite
            value there.

    Returns:
        A figure of 7.5 by 4.5 inches; a legend names the members, or a colour bar the values of the axis.

    Raises:
        HftaError: the run has no such metric or axis, or `x_axis` is invalid (for means, "time" is invalid).
    """
    figure = figure_of(7.5, 4.5)
    _draw(figure.add_subplot(), history, metric, color_by, x_axis, log_x, log_y, train, over)
    return figure


def utilization(history: History) -> Figure:
    """Utilization of the device over time, with memory on a second scale and pauses shaded.

    Args:
        history: the run.

    Returns:
        A figure of 6 by 4.5 inches.
    """
    figure = figure_of(6.0, 4.5)
    draw_utilization(figure.add_subplot(), history, room=75)
    return figure


def summary(
    history: History,
    metric: str | None = None,
    color_by: str | None = None,
    *,
    log_y: bool = False,
    over: str | Sequence[str] | None = None,
) -> Figure:
    """Curves and utilization side by side: the static picture of a run.

    Args:
        history: the run.
        metric: the metric to draw; by default the monitored metric.
        color_by: see `curves`.
        log_y: whether the curves' vertical axis is logarithmic.
        over: see `curves`.

    Returns:
        A figure of 12.5 by 4.5 inches.
    """
    figure = figure_of(12.5, 4.5)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    chosen = metric or (history.run.monitor if history.run else "val_loss")
    _draw(left, history, chosen, color_by, "epoch", False, log_y, True, over)
    draw_utilization(right, history, room=65)
    if history.run is not None:
        run, count = history.run, len(history.members)
        where = run.device_name or run.device
        title = f"{run.family} on {run.data}, {count} member{'s' * (count != 1)}, {where}: {history.state.lower()}"
        figure.suptitle(plain(title, 120), x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def _draw(
    axes: Axes,
    history: History,
    metric: str,
    color_by: str | None,
    x_axis: str,
    log_x: bool,
    log_y: bool,
    train: bool,
    over: str | Sequence[str] | None,
) -> None:
    if over is None:
        draw_curves(axes, history, metric, color_by, x_axis, log_x, log_y, train, ROOM)
    else:
        draw_bands(axes, history, metric, over, x_axis, log_x, log_y, ROOM)
