"""Models that set `requires_grad` of a tensor in `forward`: fused equals serial."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError


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


class FrozenInEval(nn.Module):
    """Freezes a layer when it is evaluated first, and for good, as a plain module does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.inner.requires_grad_(False)
        return self.head(self.inner(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_call_without_gradients_freezes_is_no_secret(mode: Any, verified: None) -> None:
    array = hfta.fuse([FrozenInEval().double() for _ in range(3)])
    x = torch.randn(5, 4, dtype=torch.float64)

    def step() -> None:
        array.eval()
        with mode():
            array(x)
        array.train()
        array.backward(nn.functional.mse_loss, x, x)

    with pytest.raises(FusionError, match=r"freezes or unfreezes a parameter in its forward.*between two steps"):
        step()
