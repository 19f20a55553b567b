"""Curves from the suite's JSON lines: throughput against members, a panel a model, a line a mode."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    "ours_split": "hfta_nb: array(x)",
}
MARKERS = "os^vDPX*p"
COLUMNS = 4


def figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Samples per second, summed over members, with quartiles as bands; a cross where the losses did not agree."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((line["model"], line["precision"]) for line in lines if line["measured"]))
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    drawn = Figure(figsize=(4.2 * columns + 0.4, 3.5 * rows + 1.3), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel, [line for line in lines if (line["model"], line["precision"]) == panel])
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("samples per second, all members")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    about = lines[0]
    busy = max((line["load"]["other_cores_median"] or 0.0) for line in lines)
    threads = f"{about['threads']} thread{'s' * (about['threads'] > 1)}"
    title = f"{about['device_name']}, {threads}, torch {about['versions']['torch']}"
    title += f", hfta_nb {about['versions']['hfta_nb']} ({about['commit']})"
    drawn.suptitle(title + (f"; other processes used up to {busy:.1f} cores" if busy > 0.2 else ""), fontsize=10)
    return drawn


def _panel(axes: Axes, panel: tuple[str, str], lines: list[dict[str, Any]]) -> None:
    measured = [line for line in lines if line["measured"]]
    for mode, marker in zip(COLORS, MARKERS, strict=True):
        right = sorted((e for e in measured if e["mode"] == mode and e["agrees"]), key=lambda e: e["members"])
        wrong = [line for line in measured if line["mode"] == mode and not line["agrees"]]
        if right:
            x = [line["members"] for line in right]
            samples = [line["members"] * line["batch"] for line in right]
            low, middle, high = (
                [n / line["step_s"][at] for n, line in zip(samples, right, strict=True)]
                for at in ("high", "median", "low")
            )
            style = {"color": COLORS[mode], "marker": marker, "markersize": 4}
            axes.plot(x, middle, label=NAMES[mode], linewidth=2.2 if mode == "ours" else 1.2, **style)
            axes.fill_between(x, low, high, color=COLORS[mode], alpha=0.15, linewidth=0)
        for line in wrong:
            y = line["members"] * line["batch"] / line["step_s"]["median"]
            axes.plot([line["members"]], [y], "x", color=COLORS[mode], label=f"{NAMES[mode]}: losses do not agree")
    members = sorted({line["members"] for line in lines})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(members, [str(m) for m in members])
    axes.set_xlabel("members")
    axes.set_title(f"{panel[0]}, {panel[1]}", fontsize=10)
    axes.grid(alpha=0.25, which="both", linewidth=0.5)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(words: Sequence[str]) -> int:
    """`python -m benchmarks plot FILE`: draws beside the file, or where `--out` says."""
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
