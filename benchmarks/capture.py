"""The gain of replaying recorded steps: training steps replayed, eager, and serial.

Float32 on one thread, Adam, measured by processor time in interleaved rounds, which reduces the effect of other
processes. The serial side is torch's own loop with its fused Adam. "first steps" are those of a new array up to the
first replay, with tuning of the block size; they show after how many steps recording has paid.

A lap of each mode has as many steps as serial training makes in `--lap` seconds.

    python benchmarks/capture.py [--members 1 2 8 32] [--rounds 40] [--lap 0.02]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import calls_in, laps, milliseconds, options, write


class Recurrent(nn.Module):
    """Classifies the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _cnn() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 49, 10))


class Attention(nn.Module):
    """Classifies the mean output of two Transformer encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).mean(1))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (64, 64)),
    "cnn": (_cnn, (32, 1, 28, 28)),
    "lstm": (Recurrent, (32, 20, 32)),
    "transformer": (Attention, (16, 32, 64)),
}


def serial(build: Callable[[], nn.Module], members: int, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """A step of every member, one after another."""
    modules = [build() for _ in range(members)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, fused=True) for m in modules]

    def step() -> None:
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return step


def fused(
    build: Callable[[], nn.Module], members: int, x: Tensor, y: Tensor, capture: bool, fused_adam: bool
) -> tuple[Callable[[], Any], float, int, str]:
    """A step of an array, the seconds of its first steps, the chosen block size, and how it runs."""
    array = hfta.fuse([build() for _ in range(members)])
    optimizer = hfta.optim.Adam(array, lr=1e-3, fused=fused_adam)
    array.capture = capture

    def step() -> None:
        optimizer.zero_grad()
        array.backward(F.cross_entropy, x, y)
        optimizer.step()

    begin = time.process_time()
    array.tune(F.cross_entropy, x, y, budget_s=0.3)
    for _ in range(4):
        step()
    took = time.process_time() - begin
    table = array.explain()
    return step, took, array.block_size, "; ".join(table["how"][table["function"] == "backward"])


def measure(name: str, members: int, rounds: int, lap_s: float) -> dict[str, Any]:
    """Processor time of one step in each mode, in milliseconds."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    made = {
        "not replayed": fused(build, members, x, y, False, False),
        "replayed": fused(build, members, x, y, True, False),
        "replayed, fused Adam": fused(build, members, x, y, True, True),
    }
    steps = {"serial": serial(build, members, x, y), **{k: v[0] for k, v in made.items()}}
    steps["serial"]()
    times = laps(steps, rounds, calls=calls_in(lap_s, steps["serial"]), warm_up=1)
    median = {k: statistics.median(v) for k, v in times.items()}
    best = "replayed, fused Adam"
    # The first replayed array also measures the kernels; the second one reuses the results.
    first, gain = max(made["replayed"][1], made[best][1]), median["serial"] - median[best]
    return {
        "step_ms_median": milliseconds(times),
        "step_ms_least": milliseconds(times, min),
        "ratio_to_serial": {k: round(median["serial"] / v, 3) for k, v in median.items()},
        "first_steps_s": {k: round(v[1], 3) for k, v in made.items()},
        "pays_after_steps": round((first - 4 * median["serial"]) / gain + 4) if gain > 0 else None,
        "block_size": {k: v[2] for k, v in made.items()},
        "how": {k: v[3] for k, v in made.items()},
    }


def main() -> int:
    given = options(__doc__, members=[1, 2, 8, 32], rounds=40, lap=0.02, models=list(MODELS)).parse_args()
    torch.set_num_threads(1)
    os.environ["HFTA_NB_CACHE"] = "off"  # the cost includes the measurement of kernels
    rows = []
    for name in given.models:
        for members in given.members:
            row = {"model": name, "members": members, **measure(name, members, given.rounds, given.lap)}
            rows.append(row)
            print(
                f"{name:11} {members:3}  {row['step_ms_median']}  {row['ratio_to_serial']}  "
                f"pays after {row['pays_after_steps']} steps"
            )
    print(write("capture_cpu", {"what": "training steps, processor time, one thread, float32", "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
