"""How much faster two processes train one array than one, each with one thread.

Steps of `Study(devices=...)`'s own path: rank 0 sends each mini-batch, outputs are gathered, gradients are summed. The
arrays are MLPs, whose gradients are large beside their work, and CNNs, where it is the other way round; both at two
sizes of mini-batches.

    python benchmarks/data_parallel.py [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import interleaved, write
from hfta_nb.train.step import ArrayStep, Step
from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.distributed.leader import lead

ADAM = {"optimizer": "adam", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "lr_scheduler": "none"}
MEMBERS = 4
STEPS = 20


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def step_of(build: Callable[[], nn.Module]) -> ArrayStep:
    """The step of an array, with Adam."""
    modules = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        modules.append(build())
    rows = [{**ADAM, "lr": 1e-3 * (i + 1)} for i in range(MEMBERS)]
    return ArrayStep(hfta.fuse(modules), rows, F.cross_entropy, {}, 1)


def steps(step: Step, x: Tensor, y: Tensor) -> None:
    for _ in range(STEPS):
        step.train(x, y)


def row(name: str, build: Callable[[], nn.Module], samples: int, others: Followers, rounds: int) -> dict[str, Any]:
    """Seconds of some steps on one process and on two, taking turns."""
    x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    one, two = step_of(build), lead(others, "sync", step_of(build))
    one.tune(x, y, 0.5)
    laps = interleaved({"one": partial(steps, one, x, y), "two": partial(steps, two, x, y)}, rounds, warm_up=1)
    speedup = laps["one"].median_s / laps["two"].median_s
    print(f"{name}, {samples} samples: one {laps['one']}, two {laps['two']}, {speedup:.2f} times as fast")
    seconds = {f"{way}_s": asdict(lap) for way, lap in laps.items()}
    return {"model": name, "samples": samples, "members": MEMBERS, "steps": STEPS, "speedup": speedup, **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    others = Followers(2, torch.device("cpu"))
    sizes = (64,) if given.quick else (64, 512)
    try:
        found = [
            row(name, build, samples, others, 1 if given.quick else given.rounds)
            for name, build in (("mlp", mlp), ("cnn", cnn))
            for samples in sizes
        ]
    finally:
        others.close()
    if not given.quick:
        what = f"one array of {MEMBERS} members, {STEPS} steps; gloo, one thread per process; {given.rounds} rounds"
        write("ranks", {"what": what, "rows": found})


if __name__ == "__main__":
    main()
