"""The gain of capturing a training step as a CUDA graph: the same step captured and uncaptured, in alternating laps.

The results also contain what was captured, the chosen kernel variants (with parts on streams), and whether a captured
step waits for the device. On a CPU nothing is captured, and there is no comparison.

    python benchmarks/graphs.py [--models mlp,cnn,resnet18] [--members 1,8,32] [--precisions float32,bf16]
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import interleaved, write
from benchmarks.suite.job import Job
from benchmarks.suite.modes.ours import Ours

LAP_S = 0.1
"""Approximate duration of an uncaptured lap."""
BEGINNING = 20
"""Steps until everything is recorded, bound and captured."""


def measure(job: Job, rounds: int) -> dict[str, Any]:
    """One row."""
    captured, plain = Ours(job), Ours(job)
    plain.stepper.graph = None
    for mode in (captured, plain):
        mode.lap(BEGINNING)
    steps = max(2, round(LAP_S / max(1e-6, plain.lap(4).wall_s / 4)))

    def lap(mode: Ours) -> float:
        return mode.lap(steps).wall_s / steps

    found = interleaved({"captured": lambda: lap(captured), "plain": lambda: lap(plain)}, rounds)
    graph = captured.stepper.graph
    row: dict[str, Any] = {"model": job.model, "members": job.members, "precision": job.precision, "steps": steps}
    row |= {f"{name}_step_s": timing.median_s for name, timing in found.items()}
    row["ratio"] = row["plain_step_s"] / row["captured_step_s"]
    row["how"] = "no GPU" if graph is None else "; ".join(graph.notes()) or "not captured yet"
    row["waits"] = _waits(captured)
    table = captured.array.explain()
    ways = [f"{function}: {how}" for function, how in zip(table["function"], table["how"], strict=True)]
    row["ways"] = [way for way in ways if "streams" in way or "block" in way or "not" in way]
    return row


def _waits(mode: Ours) -> str:
    """Where a captured step waits for the device; empty if it does not."""
    if mode.job.where.type != "cuda":
        return ""
    batches = [mode.feed(number) for number in range(4)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            mode.stepper.train(*batch)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="mlp,cnn,lstm,transformer,resnet18,pointnet_cls")
    parser.add_argument("--members", default="1,8,32")
    parser.add_argument("--precisions", default="float32,bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny models: to see that it works")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in given.models.split(","):
        for members in map(int, given.members.split(",")):
            for precision in given.precisions.split(","):
                job = Job(model, members, precision, given.device, quick=given.quick)
                try:
                    rows.append(measure(job, given.rounds))
                except Exception as error:  # continue with the other rows
                    told = "".join(traceback.format_exception(error))[-4000:]
                    row = {"model": model, "members": members, "precision": precision, "error": repr(error)}
                    rows.append(row | {"traceback": told})
                    print(told)
                print(rows[-1], flush=True)
                if not given.quick:  # save the results so far
                    write(f"graphs_{torch.device(given.device).type}", {"rows": rows})
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
