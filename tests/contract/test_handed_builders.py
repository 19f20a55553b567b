"""Build functions that keep something from call to call: members begin as in the user's own loop, and it is told."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning
from hfta_nb.train.plan import building
from tests.contract.handed_over import numbers

X, Y = numbers(12, 4), numbers(12, 1, seed=1)
Build = Callable[..., nn.Module]


def network(width: int, bias: float = 0.0) -> nn.Module:
    made = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).double()
    nn.init.constant_(made[0].bias, bias)
    return made


def by_generator() -> Build:
    stream = torch.Generator().manual_seed(0)

    def build(width: int = 5) -> nn.Module:
        made = network(width)
        for p in made.parameters():
            nn.init.normal_(p, generator=stream)
        return made

    return build


def by_numpy() -> Build:
    stream = np.random.default_rng(0)
    return lambda width=5: network(width, stream.standard_normal())


def by_counter() -> Build:
    count = itertools.count()
    return lambda width=5: network(width, next(count) / 10)


def by_dict() -> Build:
    kept = {"built": 0}

    def build(width: int = 5) -> nn.Module:
        kept["built"] += 1
        return network(width, kept["built"] / 10)

    return build


def by_environment() -> Build:
    os.environ["HFTA_NB_TEST_BUILT"] = "0"

    def build(width: int = 5) -> nn.Module:
        built = os.environ["HFTA_NB_TEST_BUILT"] = str(int(os.environ["HFTA_NB_TEST_BUILT"]) + 1)
        return network(width, int(built) / 10)

    return build


def trained(build: Build, place: Path, **more: Any) -> hfta.Study:
    grid = {"seed": [0, 1, 2]}
    study = hfta.Study(build, grid, (X, Y, X, Y), epochs=1, loss=F.mse_loss, device="cpu", lr=1e-12, optimizer="sgd",
                       dtype="float64", batch_size=12, monitor="val_loss", directory=place, **more)  # fmt: skip
    study.fit(progress=False)
    return study


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("make", [by_generator, by_numpy, by_counter, by_dict])
def test_members_begin_as_in_a_loop(make: Callable[[], Build], serial: bool, tmp_path: Path) -> None:
    own, begun = make(), []
    for seed in range(3):
        torch.manual_seed(seed)
        begun.append([p.detach() for p in own().parameters()])
    with pytest.warns(ArrayWarning, match=r"from one seed that begin with unlike values .*torch's own stream"):
        study = trained(make(), tmp_path, serial=serial)
    for i, values in enumerate(begun):
        torch.testing.assert_close(list(study.member(i).module().parameters()), values, rtol=0, atol=1e-10)


def test_what_can_not_be_put_back_is_told(tmp_path: Path) -> None:
    with pytest.warns(ArrayWarning, match=r"from one seed that begin with unlike values \(`0\.bias`\)"):
        trained(by_environment(), tmp_path)


def test_a_model_that_is_too_large_is_looked_at_without_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = tmp_path / "devices"  # a list would be put back

    def build(width: int = 5) -> nn.Module:
        made = network(width)
        with devices.open("a") as file:
            file.write(f"{made[0].weight.device.type} ")
        return made

    monkeypatch.setattr(building, "MOST_BYTES", 16)
    trained(build, tmp_path / "study")
    found = devices.read_text().split()
    assert found[0] == "meta"
    assert found[-3:] == ["cpu"] * 3
