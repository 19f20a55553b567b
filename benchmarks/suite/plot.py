"""Curves from the suite's JSON lines: throughput against members, one panel per model, one line per mode."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.suite.machine import OTHERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "serial": "#444444",
    "compiled": "#8c564b",
    "processes": "#7f7f7f",
    "mps": "#bcbd22",
    "vmap": "#1f77b4",
    "vmap_compiled": "#17becf",
    "jax": "#2ca02c",
    "ours": "#d62728",
    "ours_compiled": "#9467bd",
    "ours_split": "#ff9896",
}
NAMES = {
    "serial": "serial",
    "compiled": "serial, torch.compile",
    "processes": "one process per member",
    "mps": "one process per member, MPS",
    "vmap": "torch.func.vmap",
    "vmap_compiled": "torch.func.vmap, torch.compile",
    "jax": "jax.vmap, jit",
    "ours": "hfta_nb: array.backward",
    "ours_compiled": "hfta_nb: array.backward, compiled",
    "ours_split": "hfta_nb: array(x)",
}
MARKERS = "os^vDPX*hp"
COLUMNS = 4
FEW_LABELS = 4
"""An axis of ratios that spans more than this factor has labels at 1, 2, 5, 10 only."""


def figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Top: samples per second, summed over members, with quartiles as bands; a cross if the losses did not agree.

    Bottom: the ratio to serial. Rows are measured one after another, and modes of a row interleaved, so on a machine
    with varying load the lower panels are more reliable; on a busy one they use processor time.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    measured = [line for line in lines if line["measured"]]
    panels = list(dict.fromkeys((line["model"], line["precision"]) for line in measured))
    columns = max(1, min(COLUMNS, len(panels)))
    rows = 2 * max(1, -(-len(panels) // columns))
    drawn = Figure(figsize=(4.2 * columns + 0.4, 2.9 * rows + 1.3), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False)
    busy = max((line["load"]["other_cores_median"] or 0.0) for line in lines)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, panel in enumerate(panels):
        row, column = 2 * (number // columns), number % columns
        own = [line for line in measured if (line["model"], line["precision"]) == panel]
        above, below = grid[row, column], grid[row + 1, column]
        _throughput(above, own)
        _ratios(below, own, "cpu" if busy > OTHERS and own[0]["device"] == "cpu" else "wall")
        above.set_title(f"{panel[0]}, {panel[1]}", fontsize=10)
        for axes in (above, below):
            _members(axes, own)
        low, high = below.get_ylim()
        below.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        few = high > FEW_LABELS * low
        below.yaxis.set_minor_locator(LogLocator(subs=(2, 5) if few else range(2, 10)))
        below.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle(_title(lines[0], busy), fontsize=10)
    return drawn


def _title(about: dict[str, Any], busy: float) -> str:
    threads = f"{about['threads']} thread{'s' * (about['threads'] > 1)}"
    title = f"{about['device_name']}, {threads}, torch {about['versions']['torch']}"
    title += f", hfta_nb {about['versions']['hfta_nb']} ({about['commit']})"
    return title + (f"; a busy machine: other processes used up to {busy:.1f} cores" if busy > OTHERS else "")


def _members(axes: Axes, lines: list[dict[str, Any]]) -> None:
    members = sorted({line["members"] for line in lines})
    axes.set_axis_on()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(members, [str(m) for m in members])
    axes.set_xlabel("members")
    axes.grid(alpha=0.25, which="both", linewidth=0.5)


def _throughput(axes: Axes, lines: list[dict[str, Any]]) -> None:
    axes.set_ylabel("samples per second, all members")
    for mode, right in _right(lines):
        samples = [line["members"] * line["batch"] for line in right]
        low, middle, high = (
            [n / line["step_s"][at] for n, line in zip(samples, right, strict=True)] for at in ("high", "median", "low")
        )
        _curve(axes, mode, [line["members"] for line in right], middle, low, high)
    for line in lines:
        if not line["agrees"]:
            y = line["members"] * line["batch"] / line["step_s"]["median"]
            label = f"{NAMES[line['mode']]}: losses do not agree"
            axes.plot([line["members"]], [y], "x", color=COLORS[line["mode"]], label=label)


def _ratios(axes: Axes, lines: list[dict[str, Any]], clock: str) -> None:
    axes.set_ylabel("times serial, " + ("by processor time" if clock == "cpu" else "by the clock"))
    for mode, right in _right(lines):
        ratios = [line["ratio_to_serial"] for line in right]
        names = ("cpu_median",) * 3 if clock == "cpu" else ("median", "low", "high")
        middle, low, high = ([ratio.get(name, math.nan) for ratio in ratios] for name in names)
        _curve(axes, mode, [line["members"] for line in right], middle, low, high)


def _right(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines of each mode whose losses agreed, by members."""
    for mode in COLORS:
        right = [line for line in lines if line["mode"] == mode and line["agrees"]]
        if right:
            yield mode, sorted(right, key=lambda line: int(line["members"]))


def _curve(axes: Axes, mode: str, x: list[int], middle: list[float], low: list[float], high: list[float]) -> None:
    color, marker = COLORS[mode], MARKERS[list(COLORS).index(mode)]
    width = 2.2 if mode == "ours" else 1.2
    axes.plot(x, middle, label=NAMES[mode], linewidth=width, color=color, marker=marker, markersize=4)
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(words: Sequence[str]) -> int:
    """`python -m benchmarks plot FILE`: draws beside the file, or to `--out`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks plot", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="JSON lines of `python -m benchmarks --out FILE`")
    parser.add_argument("--out", type=Path, default=None, help="the picture; beside the file by default")
    given = parser.parse_args(words)
    if not given.file.is_file():
        parser.error(f"{given.file} is not a file")
    lines = read(given.file)
    if not lines:
        parser.error(f"{given.file} has no lines")
    out = given.out or given.file.with_suffix(".png")
    figure(lines).savefig(out, dpi=110)
    print(out)
    return 0
