"""Kind 15: what a call changes is put back before it is repeated, for members of unlike width too.

The width follows from the seed: members 0 and 2 have one architecture, and are not adjacent.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FusionError
from tests.contract.handed_over import Situation, numbers

WIDTHS = (6, 9, 6)


def width() -> int:
    """Of the member that is being built."""
    return WIDTHS[torch.initial_seed() % len(WIDTHS)]


class Coded(nn.Module):
    """A frozen codebook that follows by a moving average, as in VQ-VAE."""

    def __init__(self, where: str = "") -> None:
        super().__init__()
        self.where = where
        self.encoder, self.decoder = (
            nn.Sequential(nn.Linear(4, width()), nn.Tanh(), nn.Linear(width(), 3)),
            nn.Linear(3, 1),
        )
        self.codes = nn.Embedding(5, 3)
        self.codes.weight.requires_grad_(False)
        self.mean = nn.Parameter(self.codes.weight.detach().clone(), requires_grad=False)
        self.count = nn.Parameter(torch.ones(5), requires_grad=False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        near = (z[:, None] - self.codes.weight[None]).square().sum(-1).argmin(1)
        code = self.codes.weight[near]
        found: Tensor = self.decoder(z + (code - z).detach())
        self.calls += self.where == "warm-up"
        if self.training and (self.where != "warm-up" or self.calls > 5):
            self.follow(z.detach(), F.one_hot(near, 5).to(z))
        return found

    @torch.no_grad()
    def follow(self, z: Tensor, chosen: Tensor) -> None:
        self.count.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        self.mean.data.mul_(0.9).add_(chosen.T @ z, alpha=0.1)
        if self.where == "assigned":
            self.codes.weight.data = self.mean / self.count[:, None]
        else:
            self.codes.weight.data.copy_(self.mean / self.count[:, None])


class Followed(nn.Module):
    """A teacher that follows the student in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, width()), nn.Tanh(), nn.Linear(width(), 1))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.student(x) + 0.5 * self.teacher(x)
        if self.training:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 0.2)
        return found


class Limited(nn.Module):
    """Trained weights with a limit in forward, which begins to act in a later call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, width()), nn.Linear(width(), 1)
        with torch.no_grad():
            self.last.weight.clamp_(-0.3, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        self.last.weight.data.clamp_(-0.32, 0.32)
        found: Tensor = self.last(torch.tanh(self.inner(x)))
        return found


class Normed(nn.Module):
    """Weights that forward divides in place, not by `data`; a buffer, and one that follows in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(4, width()), nn.BatchNorm1d(width()), nn.Linear(width(), 1)
        self.register_buffer("seen", torch.zeros(width()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner.weight.div_(self.inner.weight.norm(dim=1, keepdim=True).clamp(min=1.0))
        h = self.norm(self.inner(x))
        if h.requires_grad:
            h.register_hook(self.follow)
        found: Tensor = self.last(torch.tanh(h - self.seen.clone()))
        return found

    def follow(self, grad: Tensor) -> None:
        self.seen.add_(grad.sum(0))


class Keeping(nn.Module):
    """Attributes, a buffer and a frozen parameter, each changed in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, width()), nn.Linear(width(), 1)
        self.register_buffer("seen", torch.zeros(width()))
        self.shift = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.calls, self.log = 0, [0.0]

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        found: Tensor = self.last(h - self.seen) * (1 + 0.1 * self.calls) + self.shift + self.log[-1]
        if self.training:
            self.calls += 1
            self.log.append(0.01 * self.calls)
            self.seen = 0.9 * self.seen + 0.1 * h.detach().mean(0)
            self.shift.data.add_(0.1 * h.detach().mean())
        return found


class Counting(nn.Module):
    """A part that only some members have, or that has another place in each, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x / (1 + 0.1 * self.calls)


class Bank(nn.Module):
    """A list that is appended to, and then replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, width()), nn.Linear(width(), 1)
        self.bank: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        found: Tensor = self.last(h - torch.stack(self.bank).mean(0) if self.bank else h)
        self.bank.append(h.detach().mean(0))
        self.bank = self.bank[-3:]
        return found


class Windowed(nn.Module):
    """The mean of the last calls, in a deque that drops the oldest by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, width()), nn.Linear(width(), 1)
        self.sizes: deque[float] = deque(maxlen=3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        self.sizes.append(h.detach().abs().mean().item())
        found: Tensor = self.last(h / (sum(self.sizes) / len(self.sizes)))
        return found


class Thawing(nn.Module):
    """Freezes a layer in a later call, or registers a hook of a gradient that no array would call."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, width()), nn.Linear(width(), 1)
        self.how, self.calls = how, 0
        if how == "hook":
            self.inner.weight.register_hook(lambda grad: 0.5 * grad)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 6 if self.how == "freeze once" else self.calls > 5 and self.how == "freeze":
            self.inner.weight.requires_grad_(False)
        found: Tensor = self.last(torch.tanh(self.inner(x)))
        return found


class Counted(nn.Module):
    """A dict with a mean that is changed in place; members alike."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.stats: dict[str, Any] = {"calls": 0, "mean": torch.zeros(6)}

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        found: Tensor = self.last(torch.tanh(h - self.stats["mean"]))
        if self.training:
            self.stats["calls"] += 1
            self.stats["mean"] += (h.detach().mean(0) - self.stats["mean"]) / self.stats["calls"]
        return found


def of_unlike_length(*, always: bool) -> nn.Module:
    """As many hidden layers as the seed says."""
    depth = 1 + torch.initial_seed() % 3
    hidden = [m for _ in range(depth) for m in (nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Tanh())]
    return nn.Sequential(*hidden, *([Counting()] if always or depth > 1 else []), nn.Linear(4, 1))


FORMS = ("backward", "losses", "forward")


def row(name: str, build: Any, refused: str = "", where: tuple[str, ...] = FORMS) -> Situation:
    how = dict.fromkeys(where, (FusionError, refused)) if refused else {}
    return Situation(15, name, lambda: F.mse_loss, build, y=numbers(12, 1, seed=1), forms=FORMS, refused=how)


SITUATIONS = [
    row("codebook", Coded),
    row("assigned codebook", lambda: Coded("assigned")),
    row("codebook after a warm-up", lambda: Coded("warm-up")),
    row("teacher", Followed),
    row("limited weights", Limited),
    row("weights divided in place", Normed),
    row("attributes and buffers", Keeping),
    row("a list that is replaced", Bank),
    row("a window", Windowed),
    row("a layer frozen in forward", lambda: Thawing("freeze once")),
    row("a layer frozen in each forward", lambda: Thawing("freeze")),
    row("a hook of a gradient", lambda: Thawing("hook"), "a hook of a parameter's gradient"),
    row("a tensor of a dict that is changed in place", Counted),
    row("attributes at another place in each", lambda: of_unlike_length(always=True)),
    row("attributes of a part that some lack", lambda: of_unlike_length(always=False)),
]
