"""Speed of fused training: a step of each array beside the same steps one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hfta_nb.figures import colors
from hfta_nb.figures.canvas import figure_of, plain
from hfta_nb.figures.drawing import INK, dress, legend, say
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARRAYS = 8
"""With more arrays only the total is drawn."""

_BAR, _ROOM = 0.36, 95
_SERIAL, _FUSED = colors.OKABE_ITO[1].light, colors.OKABE_ITO[0].light


class Pace(NamedTuple):
    """Seconds for one training step of all members."""

    name: str
    serial_s: float
    fused_s: float


def speedup(history: History) -> Figure:
    """Time of one training step of every member, fused and one after another, on the run's machine.

    Both are timed side by side in each array's first steps; `hfta_nb.Study.speedup` is the same as a table.

    Args:
        history: the run.

    Returns:
        A figure 7.5 inches wide with two bars for each array and two for the total. With more than 8 arrays only the
        total is drawn.
    """
    paces = _paces(history)
    figure = figure_of(7.5, 1.7 + 0.62 * max(1, len(paces)))
    axes = figure.add_subplot()
    dress(axes, "", "time of one training step of every member")
    axes.grid(visible=False, axis="y")
    if paces:
        _draw(axes, paces)
        figure.suptitle(plain(_title(history, paces[-1]), 120), x=0.01, ha="left", fontsize=10, color=INK)
    else:
        axes.set(xticks=[], yticks=[])
        say(axes, "no array's speed was measured yet; a short first run on a machine has no time for it")
    return figure


def _paces(history: History) -> list[Pace]:
    """The pace of each array, then of all together."""
    found = []
    for group, speed in sorted(history.speeds.items()):
        name = f"array {group}, {speed.members} member{'s' * (speed.members != 1)}"
        found.append(Pace(name, speed.serial_step_s, speed.step_s))
    if len(found) < 2:
        return found
    members = sum(speed.members for speed in history.speeds.values())
    whole = Pace(f"all {members} members", sum(p.serial_s for p in found), sum(p.fused_s for p in found))
    return [whole] if len(found) > MOST_ARRAYS else [*found, whole]


def _draw(axes: Axes, paces: list[Pace]) -> None:
    longest_s = max(max(p.serial_s, p.fused_s) for p in paces)
    unit, scale = ("s", 1.0) if longest_s >= 1 else ("ms", 1e3)
    handles: list[tuple[Any, str]] = []
    for offset, color, name in ((-_BAR / 2, _SERIAL, "one after another"), (_BAR / 2, _FUSED, "fused")):
        times = [scale * (p.fused_s if color == _FUSED else p.serial_s) for p in paces]
        bars = axes.barh([i + offset for i in range(len(paces))], times, height=_BAR, color=color, zorder=3)
        labels = [f"{value:.3g} {unit}" for value in times]
        if color == _FUSED:
            labels = [
                f"{text}, {p.serial_s / p.fused_s:.2f} times as fast" for text, p in zip(labels, paces, strict=True)
            ]
        axes.bar_label(bars, labels, padding=4, color=INK, fontsize=9)
        handles.append((bars, name))
    axes.set_yticks(range(len(paces)), [p.name for p in paces])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * scale * longest_s)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g} {unit}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    legend(axes, handles, _ROOM)


def _title(history: History, whole: Pace) -> str:
    run = history.run
    what = f"{run.family} on {run.data}, {run.dtype}, {run.device_name or run.device}: " if run else ""
    return f"{what}fused against one after another, {whole.serial_s / whole.fused_s:.2f}x"
