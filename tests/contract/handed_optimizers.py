"""Optimizers and lr schedulers as people write them themselves, or take from libraries."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

import hfta_nb as hfta
from tests.contract.handed_over import numbers


class Lion(Optimizer):
    """Elementwise."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = mean * group["betas"][0] + p.grad * (1 - group["betas"][0])
                p.add_(update.sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 1 - group["betas"][1])


class Lamb(Optimizer):
    """Norms of each parameter and of all gradients; a step count in the group, another one on itself, new tensors."""

    def __init__(self, params: Any, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.99), clip: float = 0.5):
        super().__init__(params, {"lr": lr, "betas": betas})
        self.clip, self.calls = clip, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.calls += 1
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        total = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
                g = p.grad / max(total / self.clip, 1)
                state["m"].lerp_(g, 1 - group["betas"][0])
                state["v"].lerp_(g * g, 1 - group["betas"][1])
                update = state["m"] / (state["v"].sqrt() + 1e-6) + 0.1 * p
                p.data = p.data - group["lr"] * (1 + 1 / self.calls) / group["step"] * p.norm() / update.norm() * update
        return loss


class Sam(Optimizer):
    """Two evaluations per step; an optimizer within, which shares its groups."""

    def __init__(self, params: Any, base: type[Optimizer] = torch.optim.SGD, rho: float = 0.05, **settings: Any):
        super().__init__(params, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        found = [p for group in self.param_groups for p in group["params"]]
        total = torch.stack([p.grad.norm() for p in found]).norm()
        for p in found:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * self.param_groups[0]["rho"] / total)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = torch.enable_grad()(closure)()
        self.first_step(zero_grad=True)
        torch.enable_grad()(closure)()
        self.second_step()
        return loss


class Langevin(torch.optim.SGD):
    """Noise in every step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.1 * group["lr"])
        return loss


class MuonAndAdam(Optimizer):
    """Groups of two kinds with different hyperparameters, as in Keller Jordan's code."""

    def __init__(self, param_groups: Any):
        for group in param_groups:
            group.setdefault("lr", 0.02)
            group.setdefault(*(("momentum", 0.9) if group["use_muon"] else ("betas", (0.9, 0.95))))
            wanted = {"params", "lr", "use_muon", "momentum" if group["use_muon"] else "betas"}
            assert set(group) == wanted, set(group)
        super().__init__(param_groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                decay = group["momentum"] if group["use_muon"] else group["betas"][0]
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - decay)
                if group["use_muon"]:
                    u, _, v = torch.linalg.svd(mean.view(len(mean), -1), full_matrices=False)
                    p.add_((u @ v).view_as(p), alpha=-group["lr"])
                else:
                    p.add_(mean, alpha=-group["lr"])


class NoDecayOnVectors(Optimizer):
    """Looks at the number of axes."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad + (0.1 * p if p.ndim > 1 else 0.0), alpha=-group["lr"])


class Prodigal(Optimizer):
    """Finds its own lr from a sum over all parameters, which it keeps in the group."""

    def __init__(self, params: Any, lr: float = 1.0, d0: float = 1e-2):
        super().__init__(params, {"lr": lr, "d": d0, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        size = sum(float((p.grad * p).abs().sum()) for p in every)
        for group in self.param_groups:
            group["d"] = max(group["d"], 1e-2 * size)
            group["k"] += 1
        for p in every:
            p.sub_(group["lr"] * group["d"] * p.grad.sign())


class Remembering(Optimizer):
    """Keeps something in every place: under a word, by parameter, by its id, in a window, streams and an optimizer."""

    def __init__(self, params: Any, lr: float = 0.01):
        super().__init__(params, {"lr": lr})
        every = [p for group in self.param_groups for p in group["params"]]
        self.state["all"] = {"calls": 0}
        self.means = {p: torch.zeros_like(p) for p in every}
        self.sums = {id(p): torch.zeros_like(p) for p in every}
        self.sizes: deque[float] = deque(maxlen=2)
        self.streams, self.noise = random.Random(1), torch.Generator().manual_seed(2)
        self.legacy, self.twister = np.random.RandomState(3), np.random.Generator(np.random.MT19937(4))
        self.within = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["all"]["calls"] += 1
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.sizes.append(sum(float(p.grad.square().sum()) for p in every))
        draw = self.streams.random() + self.legacy.random() + self.twister.random()
        factor = draw / (1 + sum(self.sizes)) / self.state["all"]["calls"]
        for p in every:
            self.means[p].lerp_(p.grad, 0.5)
            self.sums[id(p)].add_(p.grad)
            noise = torch.rand(p.shape, generator=self.noise, dtype=p.dtype)
            p.grad = factor * noise * (self.means[p] + self.sums[id(p)])
        self.within.step()


class SteppingInHooks(Optimizer):
    """Updates a parameter as soon as its gradient is there, to save memory."""

    def __init__(self, params: Any, lr: float = 0.01):
        super().__init__(params, {"lr": lr})
        for p in (p for group in self.param_groups for p in group["params"]):
            p.register_post_accumulate_grad_hook(lambda p: p.data.sub_(lr * p.grad) and None)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def trained_alone(
    build: Callable[[], nn.Module],
    seed: int,
    make: Callable[[Any], Optimizer],
    x: Any,
    y: Any,
    how: str,
    steps: int = 8,
) -> tuple[nn.Module, list[float], Optimizer]:
    """The user's own loop."""
    torch.manual_seed(seed)
    module = build()
    torch.manual_seed(seed)
    optimizer, losses = make(module), []
    for _ in range(steps):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(x), y)
            loss.backward()
            return loss

        losses.append(float(stepped(optimizer, closure, how).detach()))
    return module, losses, optimizer


def stepped(optimizer: Any, closure: Callable[[], Any], how: str) -> Any:
    """One step: the losses."""
    if how == "closure":
        return optimizer.step(closure)
    losses = closure()
    losses = losses.detach().clone()
    if how == "two steps":
        optimizer.first_step(zero_grad=True)
        closure()
        optimizer.second_step(zero_grad=True)
    else:
        optimizer.step()
    return losses


class TimmScheduler:
    """As the schedulers of timm: no `LRScheduler`, told the epoch or the number of updates, and a metric."""

    def __init__(self, optimizer: Optimizer, warmup: int, by_update: bool = False):
        self.optimizer, self.warmup, self.by_update, self.best = optimizer, warmup, by_update, float("inf")
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self._put(0)

    def _put(self, t: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, (t + 1) / self.warmup)

    def step(self, epoch: int, metric: float | None = None) -> None:
        if metric is not None and metric > self.best:
            for group in self.optimizer.param_groups:
                group["initial_lr"] *= 0.5
        self.best = min(self.best, float("inf") if metric is None else float(metric))
        if not self.by_update:
            self._put(epoch)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        if self.by_update:
            self._put(num_updates)

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "optimizer"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


schedulers = hfta.optim.lr_scheduler


X, Y = numbers(12, 4), numbers(12, 2, seed=1)


LRS = [0.01, 0.02, 0.05]


SEEDS = [0, 1, 2]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 2)).double()


def fused(seeds: list[int] = SEEDS) -> Any:
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(build())
    return hfta.fuse(modules, seeds)


def train(array: Any, optimizer: Any, how: str = "steps", steps: int = 8) -> torch.Tensor:
    def closure() -> Any:
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, X, Y)

    return torch.stack([stepped(optimizer, closure, how) for _ in range(steps)], 1)


def assert_member(array: Any, index: int, module: nn.Module) -> None:
    for (name, p), q in zip(module.named_parameters(), array.parameters(), strict=True):
        torch.testing.assert_close(q[index], p, rtol=1e-10, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


class Branching(nn.Module):
    """Uses its second layer if its first weight says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.first(x)
        return out + self.second(x) if float(self.first.weight[0, 0].detach()) > 0 else out
