"""Models that have attributes and methods with names of the array's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError
from tests.contract.handed_over import numbers

SEEDS = (0, 1, 2)
STEPS = 12
X, Y = numbers(8, 4), numbers(8, 2, seed=1)


class Named(nn.Module):
    """Has what arrays have as well: a layer, a number, a buffer, a dict and a method."""

    tune: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.losses = nn.Linear(4, 3), nn.Linear(3, 2)
        self.evaluate, self.settings = 0.5, {"weight": 0.1}
        self.register_buffer("tune", torch.ones(1))

    def select(self, row: int) -> Tensor:
        return self.body.weight[row].square().sum()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.losses(self.body(x))
        return found


class Setting(Named):
    """Sets such an attribute when it is called."""

    def forward(self, x: Tensor) -> Tensor:
        self.explain = self.body(x).square().mean()
        return super().forward(x)


def built(kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return kind().double()


def loss_of(model: Callable[[], Any], sets: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        own = model()
        penalty = own.evaluate * own.select(0) + own.settings["weight"] * own.losses.weight.square().sum()
        return F.mse_loss(output, y) * own.tune.sum() + penalty + (own.explain if sets else 0)

    return loss


@pytest.mark.usefixtures("verified")
@pytest.mark.parametrize("form", ["member", "array"])
@pytest.mark.parametrize("kind", [Named, Setting])
def test_in_a_loss_they_are_the_members(kind: type[nn.Module], form: str) -> None:
    array = hfta.fuse([built(kind, seed) for seed in SEEDS])
    optimizer = hfta.optim.SGD(array, lr=0.1)
    loss = loss_of(hfta.member if form == "member" else lambda: array, kind is Setting)
    alone = [built(kind, seed) for seed in SEEDS]
    for step in range(STEPS):
        optimizer.zero_grad()
        if kind is Setting and step == 0:
            with pytest.warns(ArrayWarning, match=r"sets `explain` on itself.*array\.explain is the array's"):
                array.backward(loss, X, Y)
        else:
            array.backward(loss, X, Y)
        optimizer.step()
        for module in alone:
            module.zero_grad()
            loss_of(lambda module=module: module, kind is Setting)(module(X), Y).backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.1 * p.grad
    assert callable(array.losses)
    assert callable(array.select)
    assert len(array.select([0, 2])) == 2
    for i, module in enumerate(alone):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(array[i].state_dict()[name], value, rtol=1e-10, atol=1e-10)


def test_what_is_assigned_is_the_members() -> None:
    array = hfta.fuse([built(Named, seed) for seed in SEEDS])
    array.evaluate = 0.25
    assert array.evaluate(lambda out, y: hfta.member().evaluate, X, Y).tolist() == [0.25] * 3  # type: ignore[operator]
    assert array[1].evaluate == 0.25


def test_a_loss_of_outputs_reads_none_of_them() -> None:
    array = hfta.fuse([built(Named, seed) for seed in SEEDS])
    out = array(X)
    with pytest.raises(FusionError, match="gets a member's outputs"):
        array.losses(lambda o, y: F.mse_loss(o, y) + array.losses.weight.sum(), out, Y)  # type: ignore[attr-defined]
