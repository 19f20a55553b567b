"""Attributes that users set on parameters: those of an array's, of its members', and of those that the model sees."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import FusionError
from tests.contract.serial import largest, make

CPU = torch.device("cpu")


class Marked(nn.Module):
    """Scales by attributes of its parameters; another one refers to a layer."""

    def __init__(self, branches: bool = False, scale: float = 2.0, width: int = 3) -> None:
        super().__init__()
        self.first, self.last, self.branches = nn.Linear(5, width), nn.Linear(width, 3), branches
        weight: Any = self.first.weight
        weight.scale, weight.options, weight.layer = scale, {"shift": 0.5}, self.last

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.first.weight
        out: Tensor = self.last(torch.tanh(self.first(x) * weight.scale)) + weight.options["shift"]
        return out * 2 if self.branches and out.sum().item() > 0 else out


def weight_of(module: Any) -> Any:
    return dict(module.named_parameters())["first.weight"]


def train(module: Any, x: Tensor, split: bool = False) -> None:
    """A step of gradient descent."""
    for p in module.parameters():
        p.grad = None
    if not isinstance(module, FusedArray):
        F.mse_loss(module(x), x[:, :3]).backward()
    elif split:
        sum(F.mse_loss(out, x[:, :3]) for out in module(x)).backward()  # type: ignore[union-attr]
    else:
        module.backward(F.mse_loss, x, x[:, :3])
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad


@pytest.mark.pairs
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("block", [3, 2, 1])
def test_as_alone(block: int, branches: bool, split: bool, verified: None) -> None:
    x = torch.randn(6, 5, dtype=torch.float64)
    array = hfta.fuse(make(lambda: Marked(branches), 3, torch.float64, CPU))
    array.block_size = block
    modules = make(lambda: Marked(branches), 3, torch.float64, CPU)
    for step in range(7):
        if step == 4:  # when it is replayed, if it is
            for each in (array, *modules):
                weight_of(each).scale = 0.5
        if step == 5:
            for each in (array, *modules):
                weight_of(each).options["shift"] = 0.25
        for each in (array, *modules):
            train(each, x, split)
        assert largest(array, modules) <= 1e-10
    for i, module in enumerate(array):
        assert weight_of(module).scale == 0.5
        assert weight_of(module).layer is module.last  # type: ignore[union-attr]
        torch.testing.assert_close(module(x), modules[i](x), atol=1e-10, rtol=0)


def test_arrays_made_of_arrays_keep_them() -> None:
    array = hfta.fuse([Marked() for _ in range(3)])
    weight_of(array).scale = 0.5
    for other in (array.select([2, 0]), copy.deepcopy(array), hfta.join(array, array)):
        assert weight_of(other).scale == weight_of(other[1]).scale == 0.5
    array[0].first.weight.options["shift"] = 3.0  # type: ignore[union-attr, operator, index]
    assert weight_of(array).options == weight_of(array[0]).options == {"shift": 0.5}


@pytest.mark.parametrize("widths", [(3, 3, 3), (3, 5, 4)])
def test_members_that_differ_in_them_are_as_alone_or_refused(widths: tuple[int, ...]) -> None:
    x = torch.randn(6, 5, dtype=torch.float64)
    modules = [Marked(scale=1.0 + i, width=width).double() for i, width in enumerate(widths)]
    array = hfta.fuse(modules)
    for _ in range(4):
        for each in (array, *modules):
            train(each, x)
    for i, module in enumerate(modules):
        assert weight_of(array[i]).scale == 1.0 + i
        torch.testing.assert_close(array[i](x), module(x), atol=1e-10, rtol=0)


def test_a_difference_in_the_models_own_parameters_is_named() -> None:
    layers = [nn.Linear(5, 3) for _ in range(2)]
    for i, layer in enumerate(layers):
        layer.weight.scale = i  # type: ignore[attr-defined]
    with pytest.raises(FusionError, match=r"weight: its attribute scale is 0 and 1"):
        hfta.fuse(layers)
