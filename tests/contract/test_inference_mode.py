"""Calls within `torch.inference_mode`, the first ones too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta

from .serial import Branching, make
from .test_verification import CPU

DOUBLE = torch.float64
CALLS = 5


class Writing(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mul_(2))  # type: ignore[no-any-return]


def norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 3))


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
@pytest.mark.parametrize("made_inside", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [norm, Writing, Branching])
def test_calls_equal_those_of_plain_modules(
    build: Callable[[], nn.Module], training: bool, made_inside: bool, verified: None
) -> None:
    modules, x, y = make(build, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE), torch.randn(6, 3, dtype=DOUBLE)
    array = hfta.fuse(modules).train(training)
    for module in modules:
        module.train(training)

    def given(i: int) -> Tensor:
        return x + i

    for i in range(CALLS):
        outside = given(i)
        with torch.inference_mode():
            own = given(i) if made_inside else outside
            out = array(own.clone())
            alone = torch.stack([module(own.clone()) for module in modules])
            torch.testing.assert_close(out, alone)
            torch.testing.assert_close(array.losses(loss_of, out, y), torch.stack([loss_of(a, y) for a in alone]))
            losses = array.evaluate(loss_of, own.clone(), y)
            torch.testing.assert_close(losses, torch.stack([loss_of(m(own.clone()), y) for m in modules]))
        array.zero_grad()
        array(given(i)).square().mean((1, 2)).sum().backward()
        for k, module in enumerate(modules):
            module.zero_grad()
            module(given(i)).square().mean().backward()
            for p, q in zip(array.parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(p.grad[k], q.grad)  # type: ignore[index]
            for b, c in zip(array.buffers(), module.buffers(), strict=True):
                torch.testing.assert_close(b[k], c)


def test_an_input_from_inference_mode(verified: None) -> None:
    modules = make(norm, 3, DOUBLE, CPU)
    array = hfta.fuse(modules).eval()
    with torch.inference_mode():
        x = torch.randn(6, 5, dtype=DOUBLE)
    for _ in range(CALLS):
        with torch.no_grad():
            torch.testing.assert_close(array(x), torch.stack([module.eval()(x) for module in modules]))
