"""The gain of compiling a replayed step: its time compiled and replayed, and the time to compile.

    OMP_NUM_THREADS=1 python benchmarks/compiling.py --members 1 8 --out benchmarks/results/compiling_cpu.json

The times are those that `array.compiling = "always"` measures, medians of alternating laps.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hfta_nb as hfta

STEPS = 6
"""Steps until a step is replayed, and therefore compiled."""


class Recurrent(nn.Module):
    """A classifier of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.cells(x)[0].mean(1))
        return found


class Attentive(nn.Module):
    """A classifier of sequences.

    Args:
        dropout: the rate; masks are drawn outside of the compiled graph.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.block(self.wide(x)).mean(1))
        return found


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def _cnn(norm: Callable[[int], nn.Module] = _groups) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 10)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (64, 64)),
    "cnn": (_cnn, (32, 1, 28, 28)),
    "lstm": (Recurrent, (32, 20, 32)),
    "transformer": (Attentive, (16, 20, 32)),
    "cnn, batch norm": (partial(_cnn, nn.BatchNorm2d), (32, 1, 28, 28)),
    "transformer, dropout": (partial(Attentive, 0.1), (16, 20, 32)),
}


def measure(name: str, members: int) -> dict[str, Any]:
    """Seconds of a step replayed and compiled, and of compiling."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    array = hfta.fuse([build() for _ in range(members)])
    array.tune(F.cross_entropy, x, y, budget_s=0.3)
    array.compiling = "always"
    for _ in range(STEPS):
        for p in array.parameters():
            p.grad = None
        array.backward(F.cross_entropy, x, y)
    program = next((s.program for s in array._calls.steps if s.program is not None), None)
    if program is None:
        return {"note": "; ".join(array._calls.steps.notes()), "block_size": array.block_size}
    found = program.decision.measured or {}
    told = {f"{k}_s": None if v is None else round(v, 7) for k, v in found.items()}
    before, after = found.get("replayed"), found.get("compiled")
    ratio = {"ratio": round(before / after, 3)} if before and after else {}
    calls = len(program.source.calls) if program.source else None
    return {**told, **ratio, "calls": calls, "note": program.decision.note, "block_size": array.block_size}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, help="where to write the results, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # no compiled code of earlier runs
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        rows = []
        for name in given.models:
            for members in given.members:
                rows.append({"model": name, "members": members, **measure(name, members)})
                print(json.dumps(rows[-1]), flush=True)
    found = {
        "command": "python benchmarks/compiling.py " + shlex.join(sys.argv[1:]),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "rows": rows,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
