"""The split form (`array(x)`, a user's loss, `.backward()`) compared with `array.backward`; and `array.evaluate`.

Float32 on one thread, torch's fused Adam by rows, by processor time in interleaved laps. "losses" is the split form in
the README, with `array.losses`; "by vmap" has the loss under `torch.func.vmap`; "by hand" one cross entropy over the
outputs of all members; "no loss" sends ones back, which isolates the time of the array itself.

    python benchmarks/split_form.py [--members 1 2 8 32] [--rounds 30] [--lap 0.02]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.capture import MODELS as OTHERS
from benchmarks.common import calls_in, laps, milliseconds, options, write
from hfta_nb.engine.array import FusedArray


class Attentive(nn.Module):
    """A transformer encoder layer whose mean output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 10)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x)).mean(1))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **OTHERS,
    "transformer": (Attentive, (16, 20, 32)),
}
Way = Callable[[FusedArray, Tensor, Tensor], Any]
_WARM = 16
"""Steps until all recordings are replayed."""


def whole(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """By `array.backward`."""
    array.backward(F.cross_entropy, x, y)


def by_losses(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """With `array.losses`."""
    array.losses(F.cross_entropy, array(x), y).sum().backward()


def by_vmap(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """With the loss under `torch.func.vmap`."""
    torch.func.vmap(F.cross_entropy, (0, None))(array(x), y).sum().backward()  # type: ignore[no-untyped-call]


def by_hand(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """With one cross entropy over the outputs of all members."""
    loss = F.cross_entropy(array(x).flatten(0, 1), y.repeat(len(array))) * len(array)
    loss.backward()  # type: ignore[no-untyped-call]


def no_loss(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """Without a loss."""
    out = array(x)
    out.backward(torch.ones_like(out))


WAYS: dict[str, tuple[Way, bool]] = {
    "backward": (whole, True),
    "losses": (by_losses, True),
    "by vmap": (by_vmap, True),
    "by hand": (by_hand, True),
    "no loss": (no_loss, True),
    "by vmap, not replayed": (by_vmap, False),
    "by hand, not replayed": (by_hand, False),
}


def stepper(modules: list[nn.Module], way: Way, capture: bool, block: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A training step of an array of these modules, in this form."""
    array = hfta.fuse(modules)
    optimizer = hfta.optim.Adam(array, lr=1e-3, fused=True)
    array.capture, array.block_size = capture, block

    def step() -> None:
        optimizer.zero_grad()
        way(array, x, y)
        optimizer.step()

    return step


def scorer(modules: list[nn.Module], capture: bool, block: int, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """`array.evaluate` of the loss."""
    array = hfta.fuse(modules).eval()
    array.capture, array.block_size = capture, block
    return lambda: array.evaluate(F.cross_entropy, x, y)


def measure(name: str, members: int, rounds: int, lap_s: float) -> dict[str, Any]:
    """Processor time of each form, in milliseconds; a lap has as many steps as `backward` makes in about `lap_s`."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    modules = [build() for _ in range(members)]
    tuned = hfta.fuse(modules)
    tuned.tune(F.cross_entropy, x, y, budget_s=0.3)
    block = tuned.block_size
    steps = {key: stepper(modules, way, capture, block, x, y) for key, (way, capture) in WAYS.items()}
    steps["evaluate"] = scorer(modules, True, block, x, y)
    steps["evaluate, not replayed"] = scorer(modules, False, block, x, y)
    for step in steps.values():
        for _ in range(_WARM):
            step()
    times = laps(steps, rounds, calls=calls_in(lap_s, steps["backward"]))
    median = {key: statistics.median(v) for key, v in times.items()}
    return {
        "block_size": block,
        "ms_median": milliseconds(times),
        "ms_least": milliseconds(times, min),
        "ratio_to_backward": {key: round(median["backward"] / median[key], 3) for key in WAYS},
        "gain_of_evaluate": round(median["evaluate, not replayed"] / median["evaluate"], 3),
    }


def main() -> int:
    given = options(__doc__, members=[1, 2, 8, 32], rounds=30, lap=0.02, models=list(MODELS)).parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in given.models:
        for members in given.members:
            row = {"model": name, "members": members, **measure(name, members, given.rounds, given.lap)}
            rows.append(row)
            print(f"{name:11} {members:3}  {row['ratio_to_backward']}  evaluate {row['gain_of_evaluate']}", flush=True)
    what = "steps by the split form and by backward, and evaluate; processor time, one thread, float32"
    print(write("split_cpu", {"what": what, "command": " ".join(["python", *sys.argv]), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
