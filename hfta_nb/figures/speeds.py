"""Speed of fused training: the whole run, and a step of each array, beside the same one after another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hfta_nb.figures import colors
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress, legend, say
from hfta_nb.records import events as ev
from hfta_nb.records.history import History
from hfta_nb.records.speeds import Pace, run_of, step_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARRAYS = 8
"""With more arrays only the total is drawn."""

_BAR, _ROOM, _ROW = 0.36, 95, 0.62
_SERIAL, _FUSED = colors.OKABE_ITO[1].light, colors.OKABE_ITO[0].light
_STEP = "time of one training step of every member"
_UNITS = (("min", 120.0, 1 / 60), ("s", 1.0, 1.0), ("ms", 0.0, 1e3))
"""By the longest time in seconds: the unit, from what on, and how much of it a second is."""


def speedup(history: History) -> Figure:
    """Time of the whole run, and of one training step of every member, fused and one after another, on its machine.

    `hfta_nb.Study.speedup` is the same as a table, and says how both are measured.

    Args:
        history: the run.

    Returns:
        A figure 7.5 inches wide. Above are two bars for the whole run so far, where its time one after another can be
        predicted. Below are two bars for a step of each array and two for the total; with more than 8 arrays only the
        total is drawn.
    """
    steps = _steps(history)
    run = run_of(history)
    whole = [("the run", run)] if steps and math.isfinite(run.speedup) and run.serial_s else []
    panels = [(rows, what) for rows, what in ((whole, _run_words(history)), (steps, _STEP)) if rows]
    inches = [0.9 + _ROW * len(rows) for rows, _ in panels] or [0.9 + _ROW]
    figure = figure_of(7.5, 0.8 + sum(inches))
    grid = figure.add_gridspec(max(1, len(panels)), 1, height_ratios=inches)
    for place, (rows, what) in enumerate(panels):
        _draw(figure.add_subplot(grid[place]), rows, what, place == len(panels) - 1)
    if panels:
        title = "\n".join(plain(line, 100) for line in _title(history, bool(whole)))
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
        return figure
    axes = figure.add_subplot(grid[0])
    dress(axes, "", _STEP)
    axes.grid(visible=False, axis="y")
    axes.set(xticks=[], yticks=[])
    say(axes, "no array's speed was measured yet; a short first run on a machine has no time for it")
    return figure


def _run_words(history: History) -> str:
    so_far = "" if history.state in ev.FINAL_STATES else " so far"
    return f"time of the whole run{so_far}; one after another is predicted"


def _steps(history: History) -> list[tuple[str, Pace]]:
    """The pace of each array's steps by its name, then of all together."""
    found = []
    for group, speed in sorted(history.speeds.items()):
        name = f"array {group}, {speed.members} member{'s' * (speed.members != 1)}"
        found.append((name, Pace(speed.serial_step_s, speed.step_s)))
    if len(found) < 2:
        return found
    members = sum(speed.members for speed in history.speeds.values())
    whole = f"all {members} members", step_of(history)
    return [whole] if len(found) > MOST_ARRAYS else [*found, whole]


def _draw(axes: Axes, rows: list[tuple[str, Pace]], what: str, explained: bool) -> None:
    dress(axes, "", what)
    axes.grid(visible=False, axis="y")
    names, paces = [name for name, _ in rows], [pace for _, pace in rows]
    longest_s = max(max(pace) for pace in paces)
    unit, scale = next((unit, scale) for unit, least, scale in _UNITS if longest_s >= least)
    handles: list[tuple[Any, str]] = []
    for offset, color, name in ((-_BAR / 2, _SERIAL, "one after another"), (_BAR / 2, _FUSED, "fused")):
        times = [scale * (p.fused_s if color == _FUSED else p.serial_s) for p in paces]
        bars = axes.barh([i + offset for i in range(len(paces))], times, height=_BAR, color=color, zorder=3)
        labels = [f"{value:.3g} {unit}" for value in times]
        if color == _FUSED:
            labels = [f"{text}, {p.speedup:.2f} times as fast" for text, p in zip(labels, paces, strict=True)]
        axes.bar_label(bars, labels, padding=4, color=INK, fontsize=9)
        handles.append((bars, name))
    axes.set_yticks(range(len(paces)), names)
    axes.set_ylim(len(paces) - 0.5, -0.5)
    axes.set_xlim(0, 1.5 * scale * longest_s)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g} {unit}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if explained:
        legend(axes, handles, _ROOM)


def _title(history: History, whole: bool) -> list[str]:
    run = history.run
    step = f"a step {step_of(history).speedup:.2f}x"
    labels = f"the run {run_of(history).speedup:.2f}x, {step}" if whole else step
    what = [f"{run.family} on {run.data}, {run.dtype}, {run.device_name or run.device}"] if run else []
    return [f"Fused against one after another: {labels} as fast", *what]
