"""Models over a frozen base, and what trains them in an array and alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hfta_nb as hfta
from hfta_nb.engine.members.arena import is_held_once

SEEDS = [5, 6, 7]
LRS = [1e-3, 3e-3, 1e-2]
WIDTH = 32


class Lora(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base, self.drop = base, nn.Dropout(0.2)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(self.drop(x), self.down), self.up)  # type: ignore[no-any-return]


def trunk(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*layers).double().requires_grad_(False)


def tuned(base: nn.Sequential, seed: int) -> nn.Module:
    """Frozen, frozen with an adapter, frozen, and a head."""
    torch.manual_seed(seed)
    layers = base[0], nn.Tanh(), Lora(base[2]), base[3], nn.Dropout(0.1), nn.Linear(WIDTH, 3)  # type: ignore[arg-type]
    return nn.Sequential(*layers).double()


ONE = trunk()
SOURCES: dict[str, Callable[[int], nn.Sequential]] = {
    "one object": lambda i: ONE,
    "equal copies": lambda i: copy.deepcopy(ONE),
    "unlike": trunk,
}
HELD = ["0.weight", "0.bias", "2.base.weight", "2.base.bias", "3.weight", "3.bias"]


def members(source: str = "one object", count: int = 3) -> list[nn.Module]:
    return [tuned(SOURCES[source](i), i) for i in range(count)]


def held(array: hfta.FusedArray) -> list[str]:
    return [name for name, p in array.named_parameters() if is_held_once(p)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y = numbers(24, WIDTH), torch.arange(24) % 3
Train = Callable[[hfta.FusedArray, Any, int], None]


def backward(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        array.backward(F.cross_entropy, X, Y)
        optimizer.step()


def split(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(array.losses(F.cross_entropy, array(X), Y).sum())
        optimizer.step()


def one_by_one(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    array.block_size = 1
    backward(array, optimizer, steps)


class Alone:
    """Plain modules, each trained by torch alone under its own seed."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = [copy.deepcopy(m) for m in modules]
        self.optimizers = [
            torch.optim.AdamW(m.parameters(), lr=lr, weight_decay=0.1) for m, lr in zip(self.modules, LRS, strict=False)
        ]
        self.states: list[Tensor] = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            self.states.append(torch.get_rng_state())

    def train(self, steps: int) -> Alone:
        for i, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            torch.set_rng_state(self.states[i])
            for _ in range(steps):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(module(X), Y))
                optimizer.step()
            self.states[i] = torch.get_rng_state()
        return self

    def equals(self, array: hfta.FusedArray) -> None:
        named = dict(array.named_parameters())
        for i, module in enumerate(self.modules):
            for name, p in module.named_parameters():
                torch.testing.assert_close(named[name][i].detach(), p.detach(), atol=1e-10, rtol=0)


def adam(array: hfta.FusedArray) -> Any:
    return hfta.optim.AdamW(array, lr=LRS[: len(array)], weight_decay=0.1)


class Codes(nn.Module):
    """A frozen codebook that follows its input, some calls after the first."""

    def __init__(self, how: str, late: bool) -> None:
        super().__init__()
        self.how, self.late, self.calls = how, late, 0
        self.codes = nn.Parameter(numbers(WIDTH, WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.calls > 3 * self.late:
            codes = self.codes.data if self.how == "data" else self.codes
            with torch.no_grad():
                codes.lerp_(x.T @ x, 0.01)
        return x @ self.codes
