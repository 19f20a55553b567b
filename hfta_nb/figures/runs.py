"""Figures of a run: what a saved notebook keeps, and what is exported.

Each function takes a `History` and returns a `matplotlib.figure.Figure`, never pyplot state, in the colours that
the live view uses (`hfta_nb.colors`), on a light background. A history in which nothing happened yet gives a
figure that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hfta_nb.figures.bands import draw_bands
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, draw_curves, draw_utilization
from hfta_nb.history import History

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
        metric: what is drawn, one of `history.metrics`.
        color_by: the axis that colour stands for; none for the member (beyond 12 members, for the first axis).
        x_axis: "epoch", "step" or "time".
        log_x, log_y: whether that axis is logarithmic.
        train: whether to add the training curve of a validation metric, dotted; not of means.
        over: an axis, or several, to be averaged over, most often "seed". At each epoch the mean is that of the
            members that have a finite value there.

    Returns:
        A figure of 7.5 by 4.5 inches; a legend names the members, or a colour bar the values of the axis.

    Raises:
        HftaError: the run has no such metric or axis, or `x_axis` is none of the three ("time" not of means).
    """
    figure = figure_of(7.5, 4.5)
    _draw(figure.add_subplot(), history, metric, color_by, x_axis, log_x, log_y, train, over)
    return figure


def utilization(history: History) -> Figure:
    """How busy the device was over time, with memory on a scale of its own and pauses shaded.

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
        metric: what is drawn; the run's monitored metric where none is named.
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
