"""What a person waits for: whole runs, from starting Python to its end, fused, serial, and by a plain loop.

Six studies, each in fresh processes on one thread: "fused" is `Study`, "serial" `Study(serial=True)`, "plain" a script
of plain torch with the same models, data, seeds, epochs and validation (`benchmarks/one_run.py`). The three take turns,
after a fused run that is not counted, in which bytecode is written and kernels are compiled and measured. A ratio is
the time of serial or plain over fused of one round. The step's ratio is that of plain's steps over fused's, without
trials.

Phases, in seconds: import (with the start of Python), data, plan (until the first array is built), first step, trials
(what training takes beyond the usual pace of its steps: ways that are tried, plain modules timed beside), steps,
validation, checkpoints, end (with the end of Python).

    python benchmarks/whole_runs.py [--models mlp cnn lstm transformer_lm resnet18 search] [--rounds 3] [--quick]
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import Timing, interleaved, options, write
from benchmarks.one_run import JOBS, job_of

WAYS = ("fused", "serial", "plain")
PHASES = ("import", "data", "plan", "first step", "trials", "steps", "validation", "checkpoints", "end")


def run(name: str, way: str, quick: bool = False) -> dict[str, Any]:
    """One run in a process of its own: what it tells, and its seconds as `run_s`."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    began, begin = time.time(), time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.one_run", name, way, repr(began), *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=root)
    took = time.perf_counter() - begin
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told["phases"]["end"] += took - sum(told["phases"].values())
    return {**told, "run_s": took}


def measured(name: str, rounds: int, quick: bool) -> dict[str, Any]:
    """The three ways of a study in turn."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}

    def task(way: str) -> Callable[[], float]:
        def timed() -> float:
            found[way].append(run(name, way, quick))
            return float(found[way][-1]["run_s"])

        return timed

    if not quick:  # bytecode is written, kernels are compiled and measured
        run(name, "fused")
    interleaved({way: task(way) for way in WAYS}, rounds, warm_up=0)
    job = job_of(name, quick)
    size = {"members": job.members, "epochs": job.epochs, "batch_size": job.batch_size, "slots": job.slots}
    row = {"study": name, **size, **summary(found)}
    if job.slots:  # its phases come from events of several trials at a time
        row["step_ratio"] = None
    return row


def summary(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """A row: of each way its times, and the ratios within each round."""
    ways = {way: _way(runs) for way, runs in found.items()}
    fused = found["fused"]
    ratios = {
        way: asdict(Timing.of([a["run_s"] / b["run_s"] for a, b in zip(found[way], fused, strict=True)]))
        for way in WAYS[1:]
    }
    steps = [a["phases"]["steps"] / b["phases"]["steps"] for a, b in zip(found["plain"], fused, strict=True)]
    named = {way: {key.removesuffix("_s"): v for key, v in ratio.items()} for way, ratio in ratios.items()}
    told = {key: [r[key] for r in fused] for key in ("speedup", "step_speedup") if all(key in r for r in fused)}
    return {"ways": ways, "ratios": named, "step_ratio": statistics.median(steps), "study_speedup": told}


def _way(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def median(of: Callable[[Mapping[str, Any]], float]) -> float:
        return round(statistics.median(map(of, runs)), 4)

    return {
        "run": asdict(Timing.of([r["run_s"] for r in runs])),
        "phases": {name: median(lambda r, name=name: r["phases"].get(name, 0.0)) for name in PHASES},  # type: ignore[misc]
        "cpu_s": median(lambda r: r["cpu_s"]),
        "peak_bytes": median(lambda r: r["peak_bytes"]),
        "loss": median(lambda r: r["loss"]),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__, models=list(JOBS), rounds=3, quick=False)
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    rows = []
    for name in given.models:
        row = measured(name, rounds, given.quick)
        rows.append(row)
        times = ", ".join(f"{way} {row['ways'][way]['run']['median_s']:.1f} s" for way in WAYS)
        ratios = ", ".join(f"{ratio['median']:.2f} to {way}" for way, ratio in row["ratios"].items())
        print(f"{name:15} {times}; {ratios}; steps {row['step_ratio'] or math.nan:.2f}", flush=True)
    what = "whole runs in processes of their own, one thread, medians over rounds; seconds by the clock"
    path = write("whole_runs", {"what": what, "rows": rows}, ("torch", "numpy", "optuna"))
    print(path)


if __name__ == "__main__":
    main()
