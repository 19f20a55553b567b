"""Models that write into their weights in forward, and models that change in their backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning
from tests.contract.serial import largest, make

CPU = torch.device("cpu")


class ForcedNorm(nn.Module):
    """Normalises a weight in place whenever it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.weight.copy_(F.normalize(self.weight, dim=1))
        return F.linear(x, F.normalize(self.weight, dim=1)) + self.weight.sum()


class Detaching(nn.Module):
    """Detaches a weight in place after it was used: the weight gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        self.first.weight.detach_()
        return out + self.first(x)[:, :3]


class Hook(nn.Module):
    """Keeps the norm of a gradient for the next forward, in a buffer that is written or replaced; counts; and keeps a
    list."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.first, self.last, self.replaces = nn.Linear(5, 4), nn.Linear(4, 3), replaces
        self.register_buffer("norm", torch.ones(()))
        self.calls, self.seen = 0, list[int]()

    def keep(self, grad: Tensor) -> Tensor:
        norm = grad.norm().detach()
        if self.replaces:
            self.norm = norm
        else:
            self.norm.copy_(norm)
        self.calls += 1
        self.seen.append(self.calls)
        return grad / norm.clamp(min=0.01)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(self.keep)
        return self.last(hidden) * self.norm.clone() * (1 + len(self.seen)) + self.calls  # type: ignore[no-any-return]


class _Twice(torch.autograd.Function):
    """Runs a module again in the backward, as reversible layers do."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.module, ctx.weights = module, weights
        ctx.save_for_backward(x)
        return module(x.detach()).detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.module(x)
        return None, *torch.autograd.grad(out, (x, *ctx.weights), grad)


class Reversible(nn.Module):
    """Updates the statistics of a batch norm in the forward, and again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        return _Twice.apply(self.inner, self.first(x), *self.inner.parameters())  # type: ignore[no-any-return, no-untyped-call]


class Corrected(nn.Module):
    """Shrinks its weight in every second backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.counter = nn.Linear(5, 3), 0

    def correct(self, grad: Tensor) -> None:
        self.counter += 1
        if self.counter % 2 == 0:
            self.linear.weight.data *= 0.5

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        if out.requires_grad:
            out.register_hook(self.correct)
        return torch.tanh(out)


class Pending(nn.Module):
    """Sets attributes in the forward that its backward puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.pending, self.calls = nn.Linear(5, 3), None, 0
        self.register_buffer("mean", torch.zeros(3))

    def update(self, grad: Tensor) -> None:
        assert self.pending is not None
        self.mean.lerp_(self.pending, 0.5)
        self.pending, self.calls = None, 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + self.mean
        if out.requires_grad:
            self.pending, self.calls = out.detach().mean(0), self.calls + 1
            out.register_hook(self.update)
        return torch.tanh(out) * (1 + self.calls)


ROWS: dict[str, Any] = {
    "forced norm": ForcedNorm,
    "detaches": Detaching,
    "hook writes": lambda: Hook(False),
    "hook replaces": lambda: Hook(True),
    "reversible": Reversible,
    "corrected": Corrected,
    "pending": Pending,
}


def _step(array: Any, modules: list[nn.Module], x: Tensor, y: Tensor, split: bool) -> None:
    """One step of gradient descent of an array and of plain modules, whose losses are compared."""
    for each in (array, *modules):
        for p in each.parameters():
            p.grad = None
    if split:
        losses = torch.stack([F.mse_loss(out, y) for out in array(x)])
        losses.sum().backward()
    else:
        losses = array.backward(F.mse_loss, x, y)
    for i, module in enumerate(modules):
        loss = F.mse_loss(module(x), y)
        loss.backward()
        torch.testing.assert_close(losses[i].detach(), loss.detach(), atol=1e-10, rtol=0)
    with torch.no_grad():
        for each in (array, *modules):
            for p in each.parameters():
                p -= 0.1 * (0 if p.grad is None else p.grad)


@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_as_alone(name: str, split: bool, verified: None) -> None:
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    array = hfta.fuse(make(ROWS[name], 3, torch.float64, CPU))
    modules = make(ROWS[name], 3, torch.float64, CPU)
    for _ in range(5):
        _step(array, modules, x, y, split)
        assert largest(array, modules) <= 1e-10
        for own, module in zip(array, modules, strict=True):
            for kind in ("calls", "seen", "counter"):
                assert getattr(own, kind, None) == getattr(module, kind, None)
    array.block_size = 3  # has no effect on such a model
    _step(array, modules, x, y, split)
    outputs = array.eval()(x)
    for i, module in enumerate(modules):
        torch.testing.assert_close(outputs[i], module.eval()(x), atol=1e-10, rtol=0)


def test_a_change_in_the_backward_is_told(verified: None) -> None:
    array = hfta.fuse(make(Reversible, 3, torch.float64, CPU))
    with pytest.warns(ArrayWarning, match=r"change, in the backward, of buffer inner\.1\.running_mean"):
        array(torch.randn(6, 5, dtype=torch.float64)).sum().backward()
    told = array.explain()["how"]
    assert told.str.contains("on tensors of its own").any()
