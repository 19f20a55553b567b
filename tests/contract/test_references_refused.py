"""Models that refer to what no copy can follow are refused, with the reason; objects without state are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import hfta_nb as hfta
from hfta_nb.errors import FusionError, MemberError

SEEDS = [101, 102, 103]


class Lazy(nn.Module):
    """Makes its head when it sees the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), None

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        if self.head is None:
            self.head = nn.Linear(x.shape[-1], 3)
        return self.head(x)


class Sparse(nn.Module):
    """A sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(5).to_sparse())
        self.linear = nn.Linear(5, 3)


class View(nn.Module):
    """A view of a parameter, made by the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.top = self.weight[:2]


@pytest.mark.parametrize("block", [3, 1])
def test_parameters_that_the_forward_creates_are_refused(block: int) -> None:
    array = hfta.fuse([Lazy() for _ in range(3)], SEEDS)
    array.block_size = block
    for _ in range(2):
        with pytest.raises(FusionError, match=r"head\.weight.*creates in its forward"):
            array(torch.randn(2, 5))


class Swapped(nn.Module):
    """Puts a layer in the place of another in a later call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.first, self.middle, self.wide = nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)
        self.calls, self.at = 0, at

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if self.calls == self.at:
            self.middle = nn.Sequential(self.wide, nn.ReLU())
        return self.middle(self.first(x))


@pytest.mark.usefixtures("verified")
@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("form", ["backward", "forward"])
def test_a_layer_that_the_forward_puts_elsewhere_is_refused(form: str, at: int) -> None:
    """Also where calls are not looked at so closely any more."""
    array = hfta.fuse([Swapped(at) for _ in range(3)], SEEDS)
    x, y = torch.randn(2, 5), torch.zeros(1)

    def train() -> None:
        for _ in range(at + 1):
            array(x).sum().backward() if form == "forward" else array.backward(lambda out, y: out.sum(), x, y)

    with pytest.raises(FusionError, match=r"middle\.0\.weight.*another name"):
        train()


def test_what_cannot_be_copied_or_stacked_is_refused() -> None:
    with pytest.raises(FusionError, match=r"member 1, `graph`.*plain layout"):
        hfta.fuse([nn.Linear(5, 3), Sparse()])
    with pytest.raises(FusionError, match=r"fuse, `top`.*can't be copied"):
        hfta.fuse([View(), View()])


class Tied(nn.Module):
    """Ties its weights in the forward, where an array has tensors that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Any:
        self.last.weight = self.first.weight
        return self.last(self.first(x))


class Failing(nn.Module):
    """Fails alone as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Any:
        raise ValueError("always")


def test_an_error_tells_whether_the_plain_module_runs() -> None:
    with pytest.raises(FusionError, match=r"cannot assign.*the plain module runs"):
        hfta.fuse([Tied() for _ in range(3)])(torch.randn(2, 5))
    with pytest.raises(MemberError, match=r"ValueError: always; .*test_references_refused.py:\d+: raise ValueError"):
        hfta.fuse([Failing() for _ in range(3)])(torch.randn(2, 5))


class Stateless:
    """An object of a class without state, as attention layers keep one that computes."""


class Processing(nn.Module):
    """Keeps an object and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.processor, self.calls = nn.Linear(5, 3), Stateless(), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.first(x) * self.calls


def test_objects_without_state_are_equal() -> None:
    array = hfta.fuse([Processing() for _ in range(3)], verify="first")
    for _ in range(3):
        array(torch.randn(2, 5))
    assert not array.notes
    assert array.block_size == 3


def quantised(seed: int) -> nn.Module:
    """A head on a base whose weights torchao has quantised."""
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).requires_grad_(False)
    quantization.quantize_(base, quantization.Int8WeightOnlyConfig())
    torch.manual_seed(seed)
    return nn.Sequential(base, nn.Linear(64, 3))


def wrapped(seed: int) -> nn.Module:
    """The same with a subclass of torch's own."""
    base = nn.Linear(5, 5)
    weight = TwoTensor(base.weight.detach(), base.weight.detach().clone())
    base.weight = nn.Parameter(weight, requires_grad=False)
    return nn.Sequential(nn.Sequential(base), nn.Linear(5, 3))


@pytest.mark.parametrize("build", [wrapped, quantised])
def test_quantised_weights_are_refused_by_name(build: Callable[[int], nn.Module]) -> None:
    with pytest.raises(FusionError, match=r"member 0, `0.0.weight`: a tensor that holds others.*dequantise it first"):
        hfta.fuse([build(i) for i in range(2)])
