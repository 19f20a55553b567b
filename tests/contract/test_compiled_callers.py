"""Arrays within code that `torch.compile` or `torch.export` sees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError

from .serial import make
from .test_verification import CPU

DOUBLE = torch.float64
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # by Dynamo
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning"),
]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 5, dtype=DOUBLE), torch.randint(0, 3, (6,))


def pair(build: Callable[[], nn.Module] = build) -> tuple[Any, Any]:
    """An array and its copy."""
    array = hfta.fuse(make(build, 3, DOUBLE, CPU))
    return array, copy.deepcopy(array)


def compiled_in_place(array: Any) -> Any:
    array.compile(backend="eager")
    return array


@pytest.mark.parametrize("wrap", [lambda array: torch.compile(array, backend="eager"), compiled_in_place])
def test_a_compiled_array_computes_what_the_array_does(wrap: Callable[[Any], Any]) -> None:
    array, other = pair()
    compiled = wrap(array)
    for _ in range(4):
        x, _ = batch()
        given, twin = compiled(x), other(x)
        torch.testing.assert_close(given, twin, rtol=0, atol=0)
        given.square().sum().backward()
        twin.square().sum().backward()
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0)


def test_a_compiled_training_step_trains_as_the_step_does() -> None:
    array, other = pair()

    def stepper(array: Any) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = hfta.optim.AdamW(array, lr=[0.1, 0.01, 0.001])
        scheduler = hfta.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            losses = array.backward(F.cross_entropy, x * 2, y)
            hfta.optim.clip_grad_norm_(array, 0.5)
            optimizer.step()
            scheduler.step()
            return losses * 2  # type: ignore[no-any-return]

        return step

    plain, compiled = stepper(other), torch.compile(stepper(array), backend="eager")
    for _ in range(5):
        x, y = batch()
        torch.testing.assert_close(compiled(x, y), plain(x, y), rtol=0, atol=0)
    for name, value in array.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=0, atol=0)


def test_a_compiled_evaluation_and_the_split_form() -> None:
    array, other = pair()

    def both(array: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = array.losses(F.cross_entropy, array(x), y)
        losses.sum().backward()
        return losses, array.evaluate(F.cross_entropy, x, y)

    x, y = batch()
    given, twin = torch.compile(both, backend="eager")(array, x, y), both(other, x, y)
    torch.testing.assert_close(given, twin, rtol=0, atol=0)


class HoldsCompiled(nn.Module):
    """A part of it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.activation = torch.compile(F.gelu, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
def test_members_with_compiled_parts_equal_their_plain_modules() -> None:
    modules = make(HoldsCompiled, 3, DOUBLE, CPU)
    array = torch.compile(hfta.fuse(copy.deepcopy(modules)), backend="eager")
    for _ in range(4):
        x, _ = batch()
        torch.testing.assert_close(array(x), torch.stack([module(x) for module in modules]))


def test_export_is_refused_with_the_way_out() -> None:
    array, _ = pair()
    x, _ = batch()
    with pytest.raises(FusionError, match=r"torch.export can't follow an array; export a member, array\[i\]"):
        torch.export.export(array.eval(), (x,))
    exported = torch.export.export(array.eval()[1], (x,))
    torch.testing.assert_close(exported.module()(x), array(x)[1])
