"""`array.apply` initialises members as plain modules are initialised."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import init

import hfta_nb as hfta
from hfta_nb.errors import FusionError

from .serial import make
from .test_verification import CPU

DOUBLE = torch.float64
MEMBERS = 3


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def kaiming(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        init.kaiming_normal_(module.weight)
        init.zeros_(module.bias)


def orthogonal_or_eye(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        init.orthogonal_(module.weight)
        init.eye_(module.weight)  # raises for more than two dimensions
    if isinstance(module, nn.Dropout):
        module.p = 0.25  # after an error, this would be missing


def by_data(module: nn.Module) -> None:
    if hasattr(module, "weight"):
        module.weight.data = torch.rand_like(module.weight) / len(module.weight)
    if isinstance(module, nn.BatchNorm1d):
        assert module.running_mean is not None
        module.running_mean.fill_(len(module.running_mean))


def new_parameters(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        fan = module.weight.shape[1]
        module.weight = nn.Parameter(torch.randn_like(module.weight) / fan)


def own_streams(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        with torch.no_grad():
            module.bias.fill_(random.random() + np.random.rand())


def reset(module: nn.Module) -> None:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()  # type: ignore[operator]


def seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


@pytest.mark.parametrize("calls", [0, 4])
@pytest.mark.parametrize("function", [kaiming, orthogonal_or_eye, by_data, new_parameters, own_streams, reset])
def test_members_are_initialised_as_plain_modules_are(function: Callable[[nn.Module], None], calls: int) -> None:
    modules, x = make(build, MEMBERS, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(copy.deepcopy(modules))
    for _ in range(calls):
        array(x)
    modules = [array[i] for i in range(MEMBERS)]
    seed()
    assert array.apply(function) is array
    drawn = torch.rand(1), random.random(), np.random.rand()
    seed()
    for module in modules:
        module.apply(function)
    assert drawn == (torch.rand(1), random.random(), np.random.rand())
    for i, module in enumerate(modules):
        torch.testing.assert_close(array[i].state_dict(), module.state_dict(), rtol=0, atol=0)
        assert array[i][3].p == module[3].p  # type: ignore[index]
    array.eval()
    torch.testing.assert_close(array(x), torch.stack([module.eval()(x) for module in modules]))


def test_members_of_unlike_architectures_are_initialised_at_their_own_sizes() -> None:
    def wide(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

    modules = [wide(width).to(DOUBLE) for width in (4, 8, 16)]
    array = hfta.fuse(copy.deepcopy(modules))
    seed()
    array.apply(kaiming)
    seed()
    for module in modules:
        module.apply(kaiming)
    for i, module in enumerate(modules):
        torch.testing.assert_close(array[i].state_dict(), module.state_dict(), rtol=0, atol=0)
    x = torch.randn(6, 5, dtype=DOUBLE)
    torch.testing.assert_close(array(x), torch.stack([module(x) for module in modules]))


def test_what_is_no_tensor_is_set_on_the_array_once() -> None:
    array = hfta.fuse(make(build, MEMBERS, DOUBLE, CPU))
    seen: list[str] = []

    def note(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.BatchNorm1d):
            module.eval()

    with torch.no_grad():
        next(array.parameters())[1].fill_(float("nan"))  # a member that has diverged is no reason to call it again
    before = copy.deepcopy(array.state_dict())
    array.apply(note)
    assert seen == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear", "FusedArray"]
    member: Any = array[1]
    assert member[3].p == 0.0
    assert [module.training for module in member] == [True, False, True, True, True]
    torch.testing.assert_close(dict(array.state_dict()), dict(before), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wrong", [lambda w: w[:, :2], lambda w: w.float()])
def test_other_shapes_and_dtypes_are_refused_and_nothing_is_changed(wrong: Callable[[Any], Any]) -> None:
    array = hfta.fuse(make(build, MEMBERS, DOUBLE, CPU))
    before = copy.deepcopy(array.state_dict())

    def replace(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(wrong(module.weight.detach()))

    with pytest.raises(FusionError, match=r"apply, member 0, 0\.weight: another tensor"):
        array.apply(replace)
    torch.testing.assert_close(dict(array.state_dict()), dict(before), rtol=0, atol=0)
    assert array(torch.randn(6, 5, dtype=DOUBLE)).shape == (MEMBERS, 6, 3)


def test_an_error_of_the_function_is_raised_and_nothing_is_changed() -> None:
    array = hfta.fuse(make(build, MEMBERS, DOUBLE, CPU))
    before = copy.deepcopy(array.state_dict())

    def fail(module: nn.Module) -> None:
        kaiming(module)
        if isinstance(module, nn.Dropout):
            raise RuntimeError("no dropout here")

    with pytest.raises(RuntimeError, match="no dropout here"):
        array.apply(fail)
    torch.testing.assert_close(dict(array.state_dict()), dict(before), rtol=0, atol=0)
