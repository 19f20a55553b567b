"""A study whose model runs out of memory on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb
from hfta_nb import Study
from hfta_nb import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.plan.estimate import FEW
from tests.call_log import CallLog

MEMBERS = 5


class Plan:
    """When to run out of memory: `error` is raised so many times, after some calls."""

    def __init__(self) -> None:
        self.after, self.times, self.calls = 0, 0, CallLog()
        self.error: BaseException = torch.OutOfMemoryError("injected")

    def set(self, after: int, times: int = 1, error: BaseException | None = None) -> None:
        self.calls.clear()
        self.after, self.times = after, times
        self.error = error or torch.OutOfMemoryError("injected")

    @property
    def left(self) -> int:
        """The number of times that is left."""
        return min(self.times, max(0, self.after + self.times - len(self.calls)))

    def __call__(self) -> None:
        if self.after <= self.calls.note() < self.after + self.times:
            raise self.error


forward, backward = Plan(), Plan()


class Hungry(torch.autograd.Function):
    """Gives its input; may run out of memory on the way there and on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if len(x) > FEW[1]:  # the plan's reckoning takes next to no memory
            forward()
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        backward()
        return grad


class Net(nn.Module):
    def __init__(self, width: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # A bias before batch norm has a gradient of zero, whose rounding Adam amplifies.
        self.first, self.norm = nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(torch.relu(Hungry.apply(self.first(x))))))  # type: ignore[no-any-return]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(60, 6, generator=generator, dtype=torch.float64), torch.arange(60) % 3


def made(directory: Path, **options: Any) -> Study:
    def net(width: int = 5, inputs: int = 6, outputs: int = 3) -> nn.Module:
        return Net(width, inputs, outputs)

    recipe = hfta_nb.family(name="hungry_net")(net)
    grid = {"lr": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]}
    asked = {"epochs": 3, "batch_size": 16, "dtype": "float64", "device": "cpu", **options}
    return Study(recipe, grid, data(), directory=directory, **asked)


def curves(study: Study) -> dict[int, dict[str, list[float]]]:
    found = study.history.members
    return {i: {name: curve.values for name, curve in m.curves.items()} for i, m in found.items()}


def same(found: dict[int, Any], wanted: dict[int, Any]) -> bool:
    """Equal but for the last bits, in which vectorised kernels depend on how long an array is."""
    assert found.keys() == wanted.keys()
    for i, named in wanted.items():
        assert found[i].keys() == named.keys()
        for name, values in named.items():
            assert found[i][name] == pytest.approx(values, rel=0, abs=1e-13), (i, name)
    return True


def halved(events: list[Event]) -> list[ev.ArrayHalved]:
    return [e for e in events if isinstance(e, ev.ArrayHalved)]
