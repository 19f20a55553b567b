"""Models that set `requires_grad` of a tensor in `forward`: fused equals serial."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError

X = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)


class Marked(nn.Module):
    """Sets it and goes on, as feature extractors of speech models do for activation checkpointing."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own, self.embed, self.head = own, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).detach() if self.own else x.clone()
        x.requires_grad = True
        return self.head(x)


class Force(Marked):
    """Differentiates by the tensor, as force fields do."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).detach() if self.own else x.clone()
        x.requires_grad = True
        assert x.requires_grad
        return torch.autograd.grad(self.head(x).tanh().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("kind", [Marked, Force])
@pytest.mark.parametrize("own", [True, False], ids=["of a member", "shared"])
def test_steps(kind: type[Marked], own: bool) -> None:
    torch.manual_seed(0)
    modules = [kind(own).double() for _ in range(3)]
    array = hfta.fuse([copy.deepcopy(m) for m in modules])
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    for _ in range(4):
        for p in array.parameters():
            p.grad = None
        losses = array.backward(nn.functional.mse_loss, x, y)
        for i, module in enumerate(modules):
            module.zero_grad()
            loss = nn.functional.mse_loss(module(x), y)
            loss.backward()
            torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-12, atol=1e-12)
            for own_p, p in zip(module.parameters(), array.parameters(), strict=True):
                alone = torch.zeros_like(own_p) if own_p.grad is None else own_p.grad
                fused = torch.zeros_like(own_p) if p.grad is None else p.grad[i]
                torch.testing.assert_close(fused, alone, rtol=1e-12, atol=1e-12)
    if kind is Marked:
        assert array.block_size == 3
        assert not any("one member at a time" in how for how in array.explain()["how"])


class Freezing(nn.Module):
    """Freezes a layer in a forward, and for good.

    Args:
        how: by which of torch's methods, before or after the layer is used.
        when: in the evaluation that comes first, in every call in train mode, or from the fourth call on.
        last: the number of the call from which on it does; members may differ in it.
    """

    def __init__(self, how: str, when: str, last: int = 4) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.how, self.when, self.last, self.calls = how, when, last, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        now = {"eval": not self.training, "train": self.training, "late": self.calls >= self.last}[self.when]
        if self.how == "requires_grad" and now:
            self.inner.requires_grad_(False)
        h = torch.tanh(self.inner(x))
        if self.how == "detach" and now:
            self.inner.weight.detach_()
        return self.head(h)


def trained(model: Any, optimizer: Any, backward: Callable[[Any], Tensor], mode: Any) -> list[Tensor]:
    """Three times an evaluation and a step: the losses, and which parameters have a gradient and learn, as numbers."""
    found = []
    for _ in range(3):
        with mode():
            model.eval()(X)
        optimizer.zero_grad()
        found.append(backward(model.train()))
        have = [[p.grad is not None, p.requires_grad] for p in model.parameters()]
        found.append(torch.tensor(have).expand(*found[0].shape, -1, 2))
        optimizer.step()
    return found + [p.detach().clone() for p in model.parameters()]


def forward(array: Any) -> Tensor:
    losses: Tensor = (array(X) - X).pow(2).flatten(1).mean(1)
    losses.sum().backward()
    return losses.detach()


def alone(module: nn.Module) -> Tensor:
    loss = nn.functional.mse_loss(module(X), X)
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize(
    ("how", "when", "mode"),
    [
        *itertools.product(["requires_grad", "detach"], ["eval", "train", "late"], [torch.no_grad]),
        ("requires_grad", "eval", torch.inference_mode),
        ("detach", "train", torch.inference_mode),
    ],
)
@pytest.mark.parametrize("form", ["backward", "forward"])
def test_a_layer_frozen_in_forward_stays_frozen(how: str, when: str, form: str, mode: Any, verified: None) -> None:
    modules = [Freezing(how, when).double() for _ in range(3)]
    array = hfta.fuse([copy.deepcopy(m) for m in modules])
    run = forward if form == "forward" else lambda a: a.backward(nn.functional.mse_loss, X, X)
    fused = trained(array, hfta.optim.AdamW(array, lr=0.1, weight_decay=0.1), run, mode)
    for i, module in enumerate(modules):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
        for own, theirs in zip(fused, trained(module, optimizer, alone, mode), strict=True):
            torch.testing.assert_close(own[i], theirs, rtol=1e-12, atol=1e-12)
    assert [p.requires_grad for p in array[0].parameters()] == [p.requires_grad for p in modules[0].parameters()]


@pytest.mark.parametrize("form", ["backward", "forward"])
def test_members_that_freeze_in_other_calls_are_refused(form: str, verified: None) -> None:
    array = hfta.fuse([Freezing("detach", "late", last).double() for last in (4, 3, 2)])
    run = forward if form == "forward" else lambda a: a.backward(nn.functional.mse_loss, X, X)
    with pytest.raises(FusionError, match=r"freezes or unfreezes a parameter in its forward.*between two steps"):
        trained(array, hfta.optim.SGD(array, lr=0.1), run, torch.no_grad)


def test_detach_in_inference_mode_freezes_nothing(verified: None) -> None:
    array = hfta.fuse([Freezing("detach", "eval").double() for _ in range(3)]).eval()
    with torch.inference_mode(), pytest.raises(FusionError, match="freezes or unfreezes a parameter"):
        array(X)
    assert all(p.requires_grad for p in array.parameters())
