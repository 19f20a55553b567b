"""Buffers that a model replaces by tensors with a gradient: fused equals serial, within a call and across calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError

X = torch.linspace(-1, 1, 60, dtype=torch.float64).view(3, 5, 4)


class Step(torch.autograd.Function):
    """A spike, with the gradient of something smoother; `vmap` can't run it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / (1 + ctx.saved_tensors[0].abs())


class Neuron(nn.Module):
    """A leaky neuron whose membrane is a buffer, of no size at first.

    Args:
        spikes: it runs member by member.
        inside: the call begins by changing the membrane in place.
    """

    def __init__(self, spikes: bool = False, inside: bool = False) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.decay = nn.Parameter(torch.rand(4))
        self.spikes, self.inside = spikes, inside
        self.register_buffer("membrane", torch.zeros(0))

    def reset(self) -> None:
        self.membrane = torch.zeros_like(self.membrane)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.membrane.shape != h.shape:
            self.membrane = torch.zeros_like(h)
        if self.inside:
            self.membrane.mul_(0.9)
        self.membrane = self.decay * self.membrane + h
        found: Tensor = self.head(Step.apply(self.membrane) if self.spikes else torch.tanh(self.membrane))
        return found


class Resetting(Neuron):
    """Begins anew in each call, in which it makes several steps."""

    def forward(self, x: Tensor) -> Tensor:
        self.reset()
        return super().forward(x) + super().forward(x.flip(0))


def in_time(model: Any) -> Tensor:
    """The loss of outputs of several calls, one after another."""
    out = torch.stack([model(x) for x in X], -1)
    return out.pow(2).mean((-3, -2, -1))


def reading(model: Any) -> Tensor:
    """A loss that reads the buffer, too."""
    return (model(X[0]).pow(2).mean((-2, -1)) + model.membrane.pow(2).mean((-2, -1))).clone()


def one_call(model: Any) -> Tensor:
    loss: Tensor = model(X[0]).pow(2).mean((-2, -1))
    return loss


BUILD: dict[str, Callable[[], Neuron]] = {
    "plain": Neuron,
    "spikes": lambda: Neuron(spikes=True),
    "in place": lambda: Neuron(inside=True),
    "resetting": Resetting,
    "resetting, spikes": lambda: Resetting(spikes=True),
}


def run(model: Any, loss: Callable[[Any], Tensor], steps: int = 4) -> list[Any]:
    """Losses, gradients and the buffer of some steps, each of which begins with a detached buffer."""
    found: list[Any] = []
    for _ in range(steps):
        model.zero_grad()
        losses = loss(model)
        losses.sum().backward()
        found += [losses.detach(), *(p.grad.clone() for p in model.parameters()), model.membrane.detach().clone()]
        assert model.membrane.requires_grad
        model.membrane.detach_()
        with torch.no_grad():
            found.append(model(X[1]))
            assert not model.membrane.requires_grad
            for p in model.parameters():
                p -= 0.1 * p.grad
    return found


@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("loss", [in_time, reading, one_call])
@pytest.mark.parametrize("name", [*BUILD])
def test_calls_of_an_array(name: str, loss: Callable[[Any], Tensor], block: int, verified: None) -> None:
    torch.manual_seed(0)
    modules = [BUILD[name]().double() for _ in range(3)]
    array = hfta.fuse([copy.deepcopy(m) for m in modules])
    array.block_size = block
    fused = run(array, loss)
    for i, module in enumerate(modules):
        for own, theirs in zip(fused, run(module, loss), strict=True):
            torch.testing.assert_close(own[i], theirs, rtol=1e-10, atol=1e-12)


def test_a_step_that_goes_on_from_an_earlier_graph_is_refused(verified: None) -> None:
    array = hfta.fuse([Neuron().double() for _ in range(3)])
    y = torch.zeros(5, 1, dtype=torch.float64)
    array(X[0])
    with pytest.raises(FusionError, match=r"a gradient from an earlier array\(x\).*detach_"):
        array.backward(nn.functional.mse_loss, X[1], y)
    array.membrane.detach_()
    array.backward(nn.functional.mse_loss, X[1], y)
