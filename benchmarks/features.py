"""Members over a frozen trunk: its outputs computed once per sample, in each step, and one after another.

The model is an encoder of 12 layers of attention, of which the first 9 are frozen, or all ("linear probe"), under a
head. Eight learning rates are trained in three ways, and each epoch ends with a validation:

- "alone": plain modules one after another, in a loop of one's own;
- "never": an array that computes frozen layers in each step, once for all members (`cache_features="never"`);
- "auto": an array whose batches bring these layers' outputs, which are computed first (`cache_features="auto"`).

Figures are processor seconds on one thread: of whole runs, with building, tuning and what is computed first, and of an
epoch after the first two, with its validation. Losses of the three ways are compared.

    python benchmarks/features.py [--rounds 3] [--quick]
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import Timing, options, write
from hfta_nb import Study
from hfta_nb.data import Data, from_tensors, order
from hfta_nb.records.events import EpochDone

LAYERS, WIDTH, TOKENS, CLASSES, BATCH = 12, 64, 16, 4, 16
LRS = [1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 6.4e-4, 1.28e-3]
WARM_UP = 2
"""Epochs in which steps are recorded."""

TOLERANCE = 1e-3
"""Of losses of float32 runs, relative."""


class Layer(nn.Module):
    """Attention and two linear layers, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.wide(self.other(x))  # type: ignore[no-any-return]


class Tuned(nn.Module):
    """The encoder under a head; its first layers are frozen."""

    def __init__(self, trunk: nn.Sequential, frozen: int) -> None:
        super().__init__()
        self.layers, self.head = copy.deepcopy(trunk), nn.Linear(WIDTH, CLASSES)
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))  # type: ignore[no-any-return]


def data_of(samples: int) -> Data:
    drawn = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, TOKENS, WIDTH, generator=drawn), torch.arange(samples) % CLASSES
    x += 0.3 * torch.randn(CLASSES, 1, WIDTH, generator=drawn)[y]
    cut = samples // 8
    return from_tensors(x[cut:], y[cut:], x[:cut], y[:cut], name="sequences")


def alone(build: Callable[[], nn.Module], data: Data, epochs: int) -> tuple[list[float], float]:
    """One after another; the validation losses of the last epoch, and the seconds of an epoch of all members."""
    found = []
    begin = time.process_time()
    for lr in LRS:
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
        for epoch in range(epochs):
            model.train()
            for rows in order(len(data), 0, epoch).split(BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(data.x[rows]), data.y[rows]))
                optimizer.step()
            model.eval()
            with torch.no_grad():
                losses = [F.cross_entropy(model(x), y) * len(y) for x, y in
                          zip(data.x_validation.split(BATCH), data.y_validation.split(BATCH), strict=True)]  # fmt: skip
            last = float(torch.stack(losses).sum()) / data.held_out
        found.append(last)
    return found, (time.process_time() - begin) / epochs


def together(build: Callable[[], nn.Module], data: Data, epochs: int, how: str) -> tuple[list[float], float]:
    """In an array; see `alone`."""
    with tempfile.TemporaryDirectory() as place:
        more: dict[str, Any] = {"epochs": epochs, "batch_size": BATCH, "optimizer": "adam", "device": "cpu"}
        study = Study(build, {"lr": LRS}, data, directory=Path(place) / "run", cache_features=how, **more)
        ends = [time.process_time() for event in study.run() if isinstance(event, EpochDone)]
        losses = [member.curves["val_loss"].values[-1] for member in study.history.members.values()]
        return losses, (ends[-1] - ends[WARM_UP - 1]) / (epochs - WARM_UP)


def measure(frozen: int, rounds: int, samples: int, epochs: int) -> Mapping[str, Timing]:
    """Processor seconds by way: of whole runs, and of an epoch (": epoch")."""
    torch.manual_seed(0)
    trunk, data = nn.Sequential(*(Layer() for _ in range(LAYERS))), data_of(samples)

    def build() -> nn.Module:
        return Tuned(trunk, frozen)

    ways: dict[str, Callable[[], tuple[list[float], float]]] = {"alone": partial(alone, build, data, epochs)}
    ways |= {how: partial(together, build, data, epochs, how) for how in ("never", "auto")}
    found: dict[str, list[float]] = defaultdict(list)
    losses: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
            begin = time.process_time()
            losses[name], epoch_s = way()
            found[name].append(time.process_time() - begin)
            found[f"{name}: epoch"].append(epoch_s)
    for name in ("never", "auto"):
        torch.testing.assert_close(torch.tensor(losses[name]), torch.tensor(losses["alone"]), rtol=TOLERANCE, atol=1e-6)
    return {name: Timing.of(values) for name, values in found.items()}


def main() -> int:
    given = options(__doc__, rounds=3, quick=False).parse_args()
    torch.set_num_threads(1)
    samples, epochs = (64, WARM_UP + 1) if given.quick else (256, 8)
    rows = []
    for frozen in (9, LAYERS):
        times = measure(frozen, given.rounds, samples, epochs)
        row: dict[str, Any] = {"frozen_layers": frozen, "layers": LAYERS, "members": len(LRS)}
        row |= {name: vars(timing) for name, timing in times.items()}
        for what in ("", ": epoch"):
            ratios = {name: times[name + what].median_s / times["auto" + what].median_s for name in ("alone", "never")}
            row |= {f"{name}_over_auto{what}": ratio for name, ratio in ratios.items()}
            print(f"{frozen} of {LAYERS} layers frozen{what}: {ratios['alone']:.2f} times one after another, "
                  f"{ratios['never']:.2f} times an array without")  # fmt: skip
        rows.append(row)
    model = f"{len(LRS)} members of {LAYERS} layers of width {WIDTH}, {TOKENS} tokens, batches of {BATCH}"
    what = f"{model}, {samples} samples, {epochs} epochs"
    print(write("features", {"what": f"{what}; processor seconds of whole runs, one thread", "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
