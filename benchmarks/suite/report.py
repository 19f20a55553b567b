"""The suite's JSON lines as Markdown: ratios per model and member count, met and unmet targets, limits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite.bars import BARS, Row, Verdict, key_of, ratio, step_s, verdicts
from benchmarks.suite.machine import OTHERS
from benchmarks.suite.plot import read

COLUMNS = {
    "compiled": "compiled",
    "processes": "processes",
    "mps": "MPS",
    "vmap": "`torch.func.vmap`",
    "vmap_compiled": "vmap, compiled",
    "jax": "`jax.vmap`",
    "ours": "**hfta_nb**",
    "ours_compiled": "hfta_nb, compiled",
    "ours_together": "hfta_nb, in one block",
    "ours_compiled_together": "hfta_nb, one block compiled",
    "ours_split": "split form",
}

ACTIVITY = {"sm_active": "SM active", "sm_occupancy": "occupancy", "tensor_active": "tensor"}
"""A GPU's counters that are shown (NVML's GPM)."""


def rows_of(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """The lines, grouped by model, members and precision; of repeated measurements the later counts."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for line in lines:
        found.setdefault((line["model"], line["members"], line["precision"]), {})[line["mode"]] = line
    return list(found.values())


def busy(lines: Sequence[dict[str, Any]]) -> bool:
    """True if other processes used so much of the machine that only processor time is reliable.

    Processor time of several threads is not the duration of a step.
    """
    on_cpu = lines[0]["device"] == "cpu" and lines[0]["threads"] == 1
    return on_cpu and max(line["load"]["other_cores_median"] or 0.0 for line in lines) > OTHERS


def report(lines: Sequence[dict[str, Any]]) -> str:
    """All sections for one file."""
    rows, by_cpu = rows_of(lines), busy(lines)
    parts = [_about(lines, by_cpu), _ratios(rows, by_cpu), _bars(verdicts(rows, by_cpu)), _limits(rows)]
    return "\n".join(part for part in parts if part)


def _about(lines: Sequence[dict[str, Any]], by_cpu: bool) -> str:
    first = lines[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    threads = f"{first['threads']} thread{'s' * (first['threads'] > 1)}"
    if first.get("omp_wait_policy"):
        threads += f", OMP_WAIT_POLICY={first['omp_wait_policy']}"
    commands = dict.fromkeys(f"`{line['command']}`" for line in lines)
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines if line["commit"]))
    clock = (
        "Other processes were busy on the machine, so the ratios are by processor time."
        if by_cpu
        else "Ratios are medians over interleaved rounds, by the clock."
    )
    return f"{first['device_name']}, {threads}; {versions}; commit {commits}. {clock}\n\n" + "; ".join(commands) + "\n"


def _ratios(rows: Sequence[Row], by_cpu: bool) -> str:
    modes = [mode for mode in COLUMNS if any(mode in row for row in rows)]
    text = ["| model | members | precision | serial, ms a step | " + " | ".join(COLUMNS[m] for m in modes) + " |"]
    text.append("|" + "---|" * (4 + len(modes)))
    for row in rows:
        model, members, precision = key_of(row)
        base = step_s(row.get("serial"), by_cpu)
        cells = [model, str(members), precision, "-" if base is None else f"{base * 1e3:.3g}"]
        cells += [_cell(row, mode, by_cpu) for mode in modes]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def _cell(row: Row, mode: str, by_cpu: bool) -> str:
    line = row.get(mode)
    if line is None or not line["measured"]:
        return "-"
    if not line["agrees"]:
        return "does not agree"
    found = ratio(row, "serial", mode, by_cpu)
    text = "-" if found is None else f"{found:.2f}"
    return f"**{text}**" if mode == "ours" else text


def _bars(found: Sequence[Verdict]) -> str:
    text = ["| target | reached | missed |", "|---|---|---|"]
    for bar in BARS:
        mine = [verdict for verdict in found if verdict.bar is bar]
        if mine:
            missed = [_named(verdict) for verdict in mine if not verdict.passed]
            text.append(f"| {bar.what} | {len(mine) - len(missed)} of {len(mine)} | {', '.join(missed) or '-'} |")
    return "\n".join(text) + "\n" if len(text) > 2 else ""


def _named(verdict: Verdict) -> str:
    value = verdict.value
    assert value is not None
    whole = verdict.bar.most and value > 1
    shown = "never" if value == float("inf") else f"{value:.0f}" if whole else f"{value:.3g}"
    precision = "" if verdict.precision == "float32" else f" {verdict.precision}"
    return f"{verdict.model} x {verdict.members}{precision} ({shown})"


def _limits(rows: Sequence[Row]) -> str:
    """The limits of ours, one line per row, with a GPU's counters if available."""
    shown = [line for row in rows if (line := row.get("ours")) and line.get("agrees") and line.get("roofline")]
    busy = {key: title for key, title in ACTIVITY.items() if any(key in (line.get("activity") or {}) for line in shown)}
    columns = ["model", "members", "precision", "of the roofline", *busy.values(), "drawing batches", "paid after"]
    text = [f"| {' | '.join(columns)} | where the step goes |", "|" + "---|" * (len(columns) + 1)]
    for line in shown:
        limits, activity = line["roofline"], line.get("activity") or {}
        drawing = "-" if line["data_share"] is None else f"{line['data_share']:.1%}"
        pays = "-" if "pays_after_steps" not in line else _steps(line["pays_after_steps"])
        cells = [
            line["model"],
            str(line["members"]),
            line["precision"],
            f"{limits['achieved']:.0%} ({limits['bound']})",
        ]
        cells += [f"{activity[key]:.0%}" if key in activity else "-" for key in busy]
        cells += [drawing, pays, (limits.get("held_back") or {}).get("note", "-")]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n" if shown else ""


def _steps(number: int | None) -> str:
    return "never" if number is None else f"{number} steps"


def main(words: Sequence[str]) -> int:
    """`python -m benchmarks report FILE ...`: prints Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="JSON lines of `python -m benchmarks --out FILE`"
    )
    given = parser.parse_args(words)
    for file in given.files:
        if not file.is_file():
            parser.error(f"{file} is not a file")
        lines = read(file)
        if not lines:
            parser.error(f"{file} has no lines")
        print(f"## {file.name}\n\n{report(lines)}")
    return 0
