"""The reference: members trained alone by torch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray


def plain() -> nn.Module:
    """Layers that keep no statistics and draw no random numbers."""
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


class Branching(nn.Module):
    """Runs member by member, as it reads values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        return found if float(found.sum()) > 0 else -found


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """A loss that any output has."""
    return ((output - target) ** 2).mean()


def target_for(module: nn.Module, x: Tensor) -> Tensor:
    """A target of the output's shape."""
    with torch.no_grad(), torch.random.fork_rng():
        return torch.randn_like(module(x))


def make(build: Callable[[], nn.Module], members: int, dtype: torch.dtype, device: torch.device) -> list[nn.Module]:
    """Plain modules, member i initialised under seed 10 + i."""
    modules = []
    for i in range(members):
        torch.manual_seed(10 + i)
        modules.append(build().to(device, dtype))
    return modules


def train_alone(
    module: nn.Module, seed: int, steps: int, x: Tensor, y: Tensor, optimizer: Any, scheduler: Any = None
) -> list[float]:
    """As anyone would; returns the losses."""
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(x), y)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def largest(array: FusedArray, modules: Sequence[nn.Module], skip: Sequence[str] = ()) -> float:
    """The largest difference between the array's rows and the plain modules' parameters and buffers."""
    stacked = dict(array.named_parameters()) | dict(array.named_buffers())
    worst = 0.0
    for i, module in enumerate(modules):
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name not in skip:
                worst = max(worst, (value.double() - stacked[name][i].double()).abs().max().item())
    return worst
