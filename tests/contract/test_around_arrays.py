"""What callers do around `array(x)`: checkpoints, and hooks of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hfta_nb as hfta
from hfta_nb.errors import FusionError

from .serial import make
from .test_verification import CPU

DOUBLE = torch.float64
CALLS = 5
"""First calls, recordings and replays."""


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 3))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_a_checkpoint_around_an_array_is_refused(warm: bool, verified: None) -> None:
    array, x = hfta.fuse(make(mlp, 3, DOUBLE, CPU)), torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    for _ in range(CALLS if warm else 0):
        array(x).sum().backward()
    with pytest.raises(FusionError, match=r"within torch\.utils\.checkpoint.*inside the model"):
        checkpoint(lambda z: array(z.clone()).exp(), x, use_reentrant=False).sum().backward()


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_a_reentrant_checkpoint_around_an_array(verified: None) -> None:
    modules, x = make(mlp, 3, DOUBLE, CPU), torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    array = hfta.fuse(modules)
    for _ in range(CALLS):
        array.zero_grad()
        checkpoint(lambda z: array(z).exp(), x, use_reentrant=True).sum().backward()
        for i, module in enumerate(modules):
            module.zero_grad()
            module(x).exp().sum().backward()
            for own, alone in zip(array.parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(own.grad[i], alone.grad)  # type: ignore[index]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_random_numbers_are_not_drawn_again_in_a_backward(warm: bool, verified: None) -> None:
    array, x = hfta.fuse(make(lambda: mlp(0.5), 3, DOUBLE, CPU)), torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    for _ in range(CALLS if warm else 0):
        array(x).sum().backward()
        array.zero_grad()
    out = checkpoint(array, x, use_reentrant=True)
    streams = [dict(states) for states in array.generators.states]
    with pytest.raises(FusionError, match=r"draws random numbers.*use_reentrant=True"):
        out.sum().backward()
    for before, after in zip(streams, array.generators.states, strict=True):
        assert all(torch.equal(before[kind], after[kind]) for kind in before)
    assert all(p.grad is None for p in array.parameters())


class Switching(nn.Module):
    """Uses one of its layers only if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, both: bool = False) -> Tensor:
        found = torch.sigmoid(self.used(x))
        return found + self.unused(x) if both else found


def test_hooks_of_parameters_that_a_call_does_not_use_are_not_called(verified: None) -> None:
    array, x = hfta.fuse(make(Switching, 3, DOUBLE, CPU)), torch.randn(4, 5, dtype=DOUBLE)
    names, called = {id(p): name for name, p in array.named_parameters()}, []
    for i in range(CALLS):
        total = array(x).sum()  # hooks that exist by now would prevent a comparison in the backward
        handles = [
            p.register_post_accumulate_grad_hook(lambda p: called.append((names[id(p)], p.grad is None)))
            for p in array.parameters()
        ]
        total.backward()
        for handle in handles:
            handle.remove()
        assert sorted(called) == [("used.bias", False), ("used.weight", False)], i
        called.clear()
        array.zero_grad()
    array(x, both=True).sum().backward()
    assert all(p.grad is not None for p in array.parameters())
