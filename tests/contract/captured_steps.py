"""Pairs of steps, one captured and one as ever; on a CPU a stand-in captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array.inspect import strictly
from hfta_nb.engine.kernels import cuda_graphs
from hfta_nb.engine.kernels.capture import Part
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step.graph import WARM_STEPS, StepGraph

MEMBERS = 3
ROW = {
    "optimizer": "adam", "lr": 1e-2, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum": 0.9,
    "nesterov": False, "lr_scheduler": "step", "step_size": 1, "gamma": 0.5,
}  # fmt: skip


class Captured:
    """A graph on a CPU: does the work again, on the memory that it was captured with."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action, self.runs, self.standing = action, 0, True

    def is_valid(self) -> bool:
        return self.standing

    def run(self) -> Any:
        self.runs += 1
        results = self.action()
        if isinstance(results, dict):
            return {name: value.clone() for name, value in results.items()}
        return [value.clone() for value in results]


class StandIn:
    """Captures on a CPU.

    Attributes:
        fails: the error of captures.
        made: all that was captured.
        ratio: what `launching` returns.
    """

    def __init__(self, generators: Any, fails: str = "") -> None:
        self.generators, self.fails = generators, fails
        self.warmed, self.ratio = 0, 1.0
        self.made: list[Captured] = []

    def refused(self) -> str:
        return cuda_graphs.refused()

    def apart(self) -> StandIn:
        return self

    def launching(self, run: Callable[[], Any]) -> float:
        run()
        return self.ratio

    def warm(self, action: Callable[[], Any]) -> Any:
        self.warmed += 1
        return action()

    def capture(self, part: Part) -> Captured:
        self.draws = part.draws
        if self.fails:
            raise RuntimeError(self.fails)
        self.made.append(Captured(part.run))
        return self.made[-1]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def right(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).double().mean()


def steps_of(device: torch.device, fails: str = "", **row: Any) -> tuple[ArrayStep, ArrayStep]:
    """Two of the same: one captured, one as ever."""
    made = []
    for captured in (True, False):
        torch.manual_seed(0)
        modules = [build().double().to(device) for _ in range(MEMBERS)]
        array = hfta.fuse(modules, [1, 2, 3])
        rows = [{**ROW, "lr": lr, **row} for lr in (1e-2, 2e-2, 5e-3)]
        step = ArrayStep(array, rows, nn.functional.cross_entropy, {"right": Metric(right)}, 10)
        step.graph = None
        if captured:
            step.graph = graph_of(step, fails)
        made.append(step)
    return made[0], made[1]


def graph_of(step: ArrayStep, fails: str = "") -> StepGraph:
    return StepGraph(StandIn(step.array.generators, fails), step.tensors, lambda: strictly(step.array))


def batch(number: int, size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (size,), generator=generator)


def train_both(steps: Sequence[ArrayStep], numbers: range, size: int = 5) -> None:
    for number in numbers:
        scores = [step.train(*batch(number, size)) for step in steps]
        for name, value in scores[0].items():
            assert torch.equal(value, scores[1][name]), (name, number)
    assert_same(*steps)


def assert_same(a: ArrayStep, b: ArrayStep) -> None:
    for (name, p), q in zip(a.array.named_parameters(), b.array.parameters(), strict=True):
        assert torch.equal(p, q), name
    for (name, p), q in zip(a.array.named_buffers(), b.array.buffers(), strict=True):
        assert torch.equal(p, q), name
    for one, other in zip(a.array.generators.states, b.array.generators.states, strict=True):
        assert torch.equal(one["cpu"], other["cpu"])


CPU = torch.device("cpu")
SETTLED = 5 + WARM_STEPS  # one step as ever, two recorded, one to bind, those that warm up, and the first captured


class Pair(nn.Module):
    """A model of two phases."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, phase: str = "") -> Tensor:
        return self.two(self.one(x)) if phase != "first" else self.one(x)
