"""The time that a training step waits for its batch: data on the device, read ahead by a thread, or from a loader.

Each mode makes whole passes over the same samples and trains the same members with the step of a study; passes of all
modes are interleaved. The start of a pass (its order, a thread, a loader's processes) counts.

    python benchmarks/data.py [--models mlp,cnn,transformer] [--members 1,8] [--passes 7] [--threads 1]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import Timing, write
from benchmarks.suite.job import Job
from benchmarks.suite.modes.ours import Ours
from hfta_nb.data import Data, from_loader
from hfta_nb.train.batches import Batches, Hosted, Resident, Streamed

PASS_S = 0.7
"""Approximate duration of a pass, which determines the number of samples."""


def ways(job: Job, batches: int) -> dict[str, Callable[[], Batches]]:
    """The modes of providing so many batches per pass."""
    task, device = job.task, job.where
    x, y = task.draw(batches * task.batch)
    whole = Data(job.model, "classification", x, y, x[: task.batch], y[: task.batch])
    kept = TensorDataset(x, y)

    def loader(workers: int) -> Batches:
        given = DataLoader(kept, task.batch, shuffle=True, num_workers=workers)
        facts = {"num_classes": 10, "out_features": 10, "vocab_size": 64}
        return Streamed(from_loader(given, (x[:8], y[:8]), **facts), task.batch, device, torch.float32)

    return {
        "on the device": lambda: Resident(whole.to(device, torch.float32), task.batch, device, torch.float32),
        "read ahead by a thread": lambda: Hosted(whole, task.batch, device, torch.float32),
        "DataLoader": functools.partial(loader, 0),
        "DataLoader, one worker": functools.partial(loader, 1),
    }


class Way:
    """Members that train on the data of one mode."""

    def __init__(self, job: Job, source: Batches) -> None:
        self.source, self.mode = source, Ours(job)
        self.steps_s: list[float] = []
        self.shares: list[float] = []
        self.passes = 0

    def go(self) -> None:
        """One pass."""
        self.source.waited_s, steps = 0.0, 0
        begin_s = time.perf_counter()
        for batch in self.source.epoch(self.passes, 0, [0]):
            self.mode.stepper.train(*batch.inputs)
            steps += 1
        self.mode.synchronise()
        took_s = time.perf_counter() - begin_s
        self.passes += 1
        self.steps_s.append(took_s / steps)
        self.shares.append(self.source.waited_s / took_s)


def measure(model: str, members: int, passes: int, device: str, quick: bool = False) -> list[dict[str, Any]]:
    """A row per mode."""
    job = Job(model, members, device=device, quick=quick)
    probe = Ours(job)
    probe.lap(8)
    batches = max(8, min(2000, round(PASS_S / (probe.lap(8).wall_s / 8)))) if not quick else 8
    made = {name: Way(job, make()) for name, make in ways(job, batches).items()}
    for number in range(passes + 1):
        order = list(made.values())
        for way in order if number % 2 == 0 else reversed(order):
            way.go()
    rows = []
    for name, way in made.items():
        way.source.close()
        timing = Timing.of(way.steps_s[1:])  # the first pass warms up
        about = {"model": model, "members": members, "data": name, "batches": batches, "batch": job.task.batch}
        spread = {"step_s": timing.median_s, "step_s_low": timing.low_s, "step_s_high": timing.high_s}
        share = statistics.median(way.shares[1:])
        rows.append(about | spread | {"wait_share": share, "wait_share_most": max(way.shares[1:])})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--members", default="1,8")
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default="", help="name of the file in results/; by default data_cpu or data_cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models: to see that it works")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    what = (
        f"Whole passes, {given.threads} thread{'s' * (given.threads > 1)} for the training step; float32. "
        "Waiting is the host's, from asking for a batch to having it."
    )
    kind = torch.device(given.device).type
    rows = []
    for model in given.models.split(","):
        for members in map(int, given.members.split(",")):
            for row in measure(model, members, given.passes, given.device, given.quick):
                rows.append(row)
                print("{model:12} {members:3} {data:24} {step_s:.6f} s a step, waiting {wait_share:.2%}".format(**row))
            print(write(given.out or f"data_{kind}", {"what": what, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
