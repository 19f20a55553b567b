"""Parts of figures: curves of members, the device over time, legends and axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.figures.canvas import plain
from hfta_nb.figures.limits import extent
from hfta_nb.records import events as ev
from hfta_nb.records.history import Curve, History, Member
from hfta_nb.search.grid import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, _LINE = "#202124", "#5f6368", "#dadce0"
_GIB = 2**30
X_LABELS = {"epoch": "epoch", "step": "optimizer step", "time": "time since the start"}
_MAX_TICKS = 12
_TINY, _HUGE = 1.2e-38, 3.4e38


def draw_curves(
    axes: Axes,
    history: History,
    metric: str,
    color_by: str | None,
    x_axis: str,
    log_x: bool,
    log_y: bool,
    train: bool,
    room: int,
) -> None:
    if x_axis not in X_LABELS:
        raise HftaError("no such axis", where="x_axis", got=x_axis, accepted=", ".join(X_LABELS))
    if history.run is not None and metric not in history.metrics:
        raise HftaError("the run has no such metric", where="metric", got=metric, accepted=", ".join(history.metrics))
    members = colors.drawn(history)
    grid_axes = history.run.axes if history.run else {}
    scheme = colors.Scheme(members, grid_axes, color_by)
    other = "train_" + metric.removeprefix("val_") if train and metric.startswith("val_") else ""
    lines, trained = [], []
    for member in members:
        stroke = scheme.stroke(member)
        if other in member.curves:
            curve = member.curves[other]
            trained.append((member, _line(axes, history, curve, stroke, x_axis, log_y, dotted=True)))
        lines.append(_line(axes, history, member.curves.get(metric, Curve()), stroke, x_axis, log_y))
    dotted = ", training dotted" if other and any(other in m.curves for m in members) else ""
    some = f" ({len(members)} of {len(history.members)} members)" if len(members) < len(history.members) else ""
    dress(axes, metric.replace("val_", "validation ").replace("_", " ") + dotted + some, X_LABELS[x_axis])
    place_ticks(axes, history, x_axis)
    if any(len(line.get_xdata()) for line in lines):
        scale(axes, [*zip(members, lines, strict=True), *trained], _best(history), log_x, log_y)
    else:
        say(axes, f"no points of {plain(metric)} yet" if members else "no run yet")
    for member, line in zip(members, lines, strict=True):
        if _ended(member):
            _mark_end(axes, line)
    if scheme.axis is not None and not scheme.axis.sequential and len(scheme.axis.values) <= colors.MAX_LEGEND:
        values = [member.config.get(scheme.axis.name) for member in members]
        named = {plain(show(value)): line for value, line in zip(values, lines, strict=True)}
        legend(axes, [(line, name) for name, line in named.items()], room)
        return
    if scheme.axis is not None:
        color_bar(axes, scheme.axis)
    if 0 < len(members) <= colors.MAX_LEGEND:
        names = colors.varying(members)
        legend(axes, [(line, _name(member, names)) for member, line in zip(members, lines, strict=True)], room)


def place_ticks(axes: Axes, history: History, x_axis: str) -> None:
    from matplotlib.ticker import MaxNLocator

    if x_axis == "time":
        time_axis(axes)
        _shade_pauses(axes, history)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def _line(
    axes: Axes, history: History, curve: Curve, stroke: colors.Stroke, x_axis: str, log_y: bool, dotted: bool = False
) -> Any:
    columns: dict[str, Sequence[float]] = {"epoch": curve.epochs, "step": curve.steps}
    xs = columns[x_axis] if x_axis in columns else _since_start(history, curve.times)
    # Values that can't be drawn leave a gap; the live view also omits values beyond float32's range.
    least = _TINY if log_y else -_HUGE
    ys = [v if least <= v <= _HUGE else math.nan for v in curve.values]
    style: Any = (0, stroke.dash) if stroke.dash else "-"
    (line,) = axes.plot(
        xs,
        ys,
        color=stroke.light,
        linestyle=(0, (1, 2)) if dotted else style,
        linewidth=1.0 if dotted else 1.6,
        alpha=0.5 if dotted else 1.0,
        marker="o" if sum(map(math.isfinite, ys)) == 1 else None,
        markersize=3 if dotted else 5,
        zorder=2 if dotted else 3,
    )
    return line


def scale(axes: Axes, drawn: Sequence[tuple[Member, Any]], best: Member | None, log_x: bool, log_y: bool) -> None:
    lines = [line for _, line in drawn]
    if log_x and any(x > 0 for line in lines for x in line.get_xdata()):
        axes.set_xscale("log")
    if log_y and any(y > 0 for line in lines for y in line.get_ydata()):
        axes.set_yscale("log")
    elif not log_y:
        low, high = extent([(m is best, list(filter(math.isfinite, line.get_ydata()))) for m, line in drawn])
        room = 0.05 * (high - low) or 0.1 * abs(high) or 0.5
        axes.set_ylim(low - room, high + room)


def _mark_end(axes: Axes, line: Any) -> None:
    """A cross at the last point that can be drawn, or at the edge if the point is outside the axis."""
    points = [(x, y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if math.isfinite(y)]
    if points:
        low, high = axes.get_ylim()
        x, y = points[-1]
        style: dict[str, Any] = {"marker": "x", "markersize": 7, "markeredgewidth": 2, "zorder": 4, "clip_on": False}
        axes.plot(x, min(max(y, low), high), color=line.get_color(), **style)


def draw_utilization(axes: Axes, history: History, room: int) -> None:
    """Utilization and memory over time: of several devices, as thin lines behind those of the run's own."""
    lines = colors.device_lines(key for sample in history.samples for key in sample.values)
    handles: list[tuple[Any, str]] = []
    for line in lines:
        if line.kind == "fraction":
            drawn = _measurement(axes, history, line, 1.0)
            if not line.faint:
                handles.append((drawn, line.label))
    dress(axes, "utilization", X_LABELS["time"])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f}%")
    memory = [line for line in lines if line.kind == "memory"]
    if memory:
        right = axes.twinx()
        for line in memory:
            drawn = _measurement(right, history, line, 1 / _GIB)
            handles.append((drawn, f"{line.label} (right)"))
        dress(right, "memory, GiB", "")
        right.grid(visible=False)
        right.set_ylim(
            0, 1.08 * max((y for h, _ in handles if h.axes is right for y in h.get_ydata()), default=1.0) or 1.0
        )
    time_axis(axes)
    if not history.samples:
        axes.set_xlim(0, 10)
        say(axes, "the device was not measured yet")
    _shade_pauses(axes, history)
    if handles:
        legend(axes, handles, room)


def _measurement(axes: Axes, history: History, line: colors.DeviceLine, factor: float) -> Any:
    """Draw one measurement; returns the line of the run's own device."""

    def value(sample: ev.DeviceSampled) -> float:
        if line.key == colors.CORES and line.key not in sample.values:
            mean = colors.core_mean(sample.values)
            return math.nan if mean is None else mean
        found = factor * sample.values.get(line.key, math.nan)
        return found if math.isfinite(found) else math.nan

    drawn: list[Any] = []
    own = history.run.device if history.run else ""
    for device in sorted({sample.device for sample in history.samples}, key=lambda name: (name != own, name)) or [own]:
        faint = line.faint or bool(drawn)
        samples = [sample for sample in history.samples if sample.device == device]
        xs = _since_start(history, [sample.time_s for sample in samples])
        drawn += axes.plot(
            xs,
            [value(sample) for sample in samples],
            color=line.stroke.light,
            linestyle=(0, line.stroke.dash) if line.stroke.dash else "-",
            linewidth=0.7 if faint else 1.5,
            alpha=0.35 if line.faint else 1.0,
            marker="o" if len(xs) == 1 else None,
            markersize=4,
            zorder=2 if faint else 3,
        )
    return drawn[0]


def _shade_pauses(axes: Axes, history: History) -> None:
    if not history.pauses:
        return
    axes.margins(x=0)
    low, high = axes.get_xlim()
    for begin, end in history.pauses:
        (from_s,) = _since_start(history, [begin])
        to_s = high if end is None else _since_start(history, [end])[0]
        if to_s > from_s:
            axes.axvspan(from_s, to_s, color=MUTED, alpha=0.14, linewidth=0, zorder=1)
    axes.set_xlim(low, high)


def _since_start(history: History, times_s: Sequence[float]) -> list[float]:
    start_s = history.begin_s if history.run else history.samples[0].time_s if history.samples else 0.0
    return [t - start_s for t in times_s]


_CLOCK_STEPS_S = [
    *(n * unit for unit in (1, 60) for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 for n in (1, 2, 3, 6, 12, 24)),
]
"""Distances between ticks that a clock has."""

_MOST_TICKS = 6


def time_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    class Clock(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            step_s = next((step for step in _CLOCK_STEPS_S if vmax - vmin <= _MOST_TICKS * step), 0)
            if step_s == 0 or vmax - vmin < 10:
                return super().tick_values(vmin, vmax)
            return [step_s * i for i in range(math.ceil(vmin / step_s), math.floor(vmax / step_s) + 1)]

    def label(value: float, _: Any = None) -> str:
        return _clock(value, parts=any(round(v, 6) % 1 for v in axes.xaxis.get_majorticklocs()))

    axes.xaxis.set_major_locator(Clock(nbins=_MOST_TICKS, steps=[1, 1.5, 2, 3, 6, 10], min_n_ticks=2))
    axes.xaxis.set_major_formatter(label)


def _clock(seconds: float, parts: bool) -> str:
    """A tick as ``0:41``, or as ``1.5 s`` on an axis with fractions of seconds."""
    if seconds < 0:
        return "-" + _clock(-seconds, parts)
    if parts:
        return f"{seconds:.6g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def dress(axes: Axes, y_label: str, x_label: str) -> None:
    axes.set_facecolor("white")
    axes.set_ylabel(plain(y_label), color=INK)
    if x_label:
        axes.set_xlabel(x_label, color=INK)
    axes.tick_params(colors=MUTED, labelcolor=INK)
    axes.grid(visible=True, color=_LINE, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name != "top" and (name in ("left", "bottom") or not x_label))
        spine.set_color(MUTED)


def say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def legend(axes: Axes, entries: Sequence[tuple[Any, str]], room: int) -> None:
    """A legend below the axes, in as many columns as fit into `room` letters."""
    from matplotlib.transforms import ScaledTranslation

    longest = max(len(name) for _, name in entries)
    figure: Any = axes.figure
    below = axes.transAxes + ScaledTranslation(0, -40 / 72, figure.dpi_scale_trans)
    axes.legend(
        [handle for handle, _ in entries],
        [name for _, name in entries],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=below,
        ncols=max(1, min(4, room // (longest + 7))),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )


def color_bar(axes: Axes, axis: colors.AxisColors) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(axis.values)
    mappable = ScalarMappable(
        BoundaryNorm([i - 0.5 for i in range(count + 1)], count), ListedColormap([s.light for s in axis.strokes])
    )
    figure: Any = axes.figure
    bar = figure.colorbar(mappable, ax=axes, fraction=0.06, pad=0.02)
    ticks = range(0, count, math.ceil(count / _MAX_TICKS))
    rough = axis.sequential and count > _MAX_TICKS  # values that were drawn, of which a few are named
    labels = [f"{axis.values[i]:.2g}" if rough else plain(axis.labels[i], 20) for i in ticks]
    bar.set_ticks(list(ticks), labels=labels)
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, length=0, labelsize=8)
    bar.outline.set_visible(False)
    bar.set_label(plain(axis.name), color=INK)


def _best(history: History) -> Member | None:
    leader = history.leader
    return leader if leader and math.isfinite(leader.best_value) else None


def _name(member: Member, names: Sequence[str]) -> str:
    name = plain(colors.label(member, names))
    return f"{name} ({member.state.lower()})" if _ended(member) else name


def _ended(member: Member) -> bool:
    if member.state == ev.COMPLETE:
        return member.reason != ""
    return member.state in ev.FINAL_STATES
