"""A model with convolutions, and a machine on which channels-last images are faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.layouts import GIVEN, LAST
from tests.training import train

MEMBERS, SAMPLES, SIDE = 2, 4, 16
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Times of this test's own, and torch's kernels: those compiled here round otherwise than ``strategy="fixed"``."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Channels last are found to be faster; one entry for each time that this is measured."""
    asked: list[str] = []

    def timed(given: Any, last: Any, device: torch.device) -> dict[str, float]:
        asked.append(str(device))
        return {GIVEN: 2e-3, LAST: 1e-3}

    monkeypatch.setattr(layouts, "_timed", timed)
    return asked


class Net(nn.Module):
    """Convolutions, a batch norm and a head; `end` takes the image to its features."""

    def __init__(self, end: Any = None, between: nn.Module | None = None, channels: int = 3) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.between = between or nn.Identity()
        self.second, self.head = nn.Conv2d(8, 6, 3, 2, 1), nn.Linear(6, 5)
        self.end = end or (lambda image: image.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.norm(self.first(x)).relu())
        return self.head(self.end(self.second(x).relu()))


def fused(build: Any, device: torch.device, dtype: torch.dtype = torch.float32, strategy: str = "measured") -> Any:
    torch.manual_seed(0)
    array = hfta.fuse([build().to(device, dtype) for _ in range(MEMBERS)], [1, 2])
    array.strategy = strategy
    return array


def batch(number: int, device: torch.device, dtype: torch.dtype, channels: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(SAMPLES, channels, SIDE, SIDE, generator=draw, dtype=dtype)
    return x.to(device), torch.randint(0, 5, (SAMPLES,), generator=draw).to(device)


def trained(
    array: FusedArray, device: torch.device, dtype: torch.dtype = torch.float32, channels: int = 3, split: bool = False
) -> Tensor:
    return train(array, [batch(number, device, dtype, channels) for number in range(8)], [0.1, 0.05], split)


def layout(array: FusedArray, what: str = "backward") -> list[str]:
    table = array.explain()
    return [how for how in table["how"][table["function"] == what] if LAST in how]


def same(one: FusedArray, two: FusedArray, tolerance: float) -> None:
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance), name
