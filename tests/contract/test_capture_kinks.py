"""Kernels chosen by time round differently: a unit that is turned on by rounding does not prevent replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import KernelVariant
from hfta_nb.engine.kernels.strategy.times import Kept

aten = torch.ops.aten
SAMPLES = 512


def _above(call: Callable[..., Any]) -> Callable[..., Any]:
    """Rounds up: every product is a little more than it is."""

    def above(*args: Any, out: Tensor) -> Tensor:
        result: Tensor = call(*args, out=out)
        return result.add_(1e-7)

    return above


@pytest.fixture
def rounding_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with a bias are computed in a way that rounds up, as the faster one."""

    def variants_of(function: Any, args: Any, device: torch.device) -> list[KernelVariant]:
        return [KernelVariant("up", _above)] if function in (aten.baddbmm.default, aten.addmm.default) else []

    def measured(ways: Mapping[str, KernelVariant], *_: Any) -> dict[str, float | None]:
        return {name: 1.0 if name == "up" else 2.0 for name in ways}

    fresh = Kept(None, {})
    monkeypatch.setattr(autotune, "kept", lambda device: fresh)
    monkeypatch.setattr(autotune, "variants_of", variants_of)
    monkeypatch.setattr(autotune, "_measured", measured)


def _network(at_the_kink: int) -> nn.Sequential:
    """For the first so many samples of `_data` a unit is at zero, where it is off."""
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    first = network[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        if at_the_kink:
            first.weight[0] = torch.eye(8)[0]
            first.bias[0] = -1.0
    return network


def _data(at_the_kink: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, 8)
    x[:at_the_kink] = torch.eye(8)[0]
    return x, torch.randint(3, (SAMPLES,))


def _trained(samples: int) -> tuple[FusedArray, list[Tensor], list[Tensor]]:
    """The array, and gradients as ever and replayed."""
    torch.manual_seed(0)
    array = hfta.fuse([_network(samples) for _ in range(2)])
    x, y = _data(samples)
    found = []
    for _ in range(5):
        array.zero_grad()
        array.backward(nn.functional.cross_entropy, x, y)
        found.append([p.grad.clone() for p in array.parameters() if p.grad is not None])
    return array, found[0], found[-1]


def _told(array: FusedArray) -> list[str]:
    table = array.explain()
    return list(table["how"][table["function"] == "backward"])


@pytest.mark.usefixtures("rounding_up")
def test_a_unit_turned_on_by_rounding_does_not_matter() -> None:
    array, first, last = _trained(1)
    assert _told(array) == ["recorded"]
    assert {choice.chosen.name for choice in array._calls.steps.choices()} == {"up"}
    apart = [(a - b).norm() / a.norm() for a, b in zip(first, last, strict=True)]
    assert 1e-4 < max(apart) < 2e-2  # it was turned on, which is little among so many


@pytest.mark.usefixtures("rounding_up")
def test_where_it_matters_the_recorded_kernels_stay() -> None:
    array, first, last = _trained(SAMPLES // 2)
    assert _told(array) == ["recorded"]
    assert not array._calls.steps.choices()
    for a, b in zip(first, last, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("rounding_up")
def test_without_such_units_kernels_are_held_to_rounding() -> None:
    array, first, last = _trained(0)
    assert {choice.chosen.name for choice in array._calls.steps.choices()} == {"up"}
    for a, b in zip(first, last, strict=True):
        torch.testing.assert_close(a, b)
