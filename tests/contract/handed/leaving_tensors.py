"""Kind 5: tensors that leave a model by another way than its outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.handed_over import Situation, numbers

X, Y = (numbers(12, n, seed=n).float().double() for n in (4, 1))  # a study keeps data in float32


class Variational(nn.Module):
    """With a divergence, and the distribution that it comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        self.kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        self.posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
        found: Tensor = self.decoder(mean)
        return found


class Experts(nn.Module):
    """A mixture with a balance term, and its gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x).softmax(-1)
        self.balance = (gates.mean(0) ** 2).sum()
        self.kept = {"gates": [gates, gates.log()], "count": 3}
        return torch.stack([gates[:, i : i + 1] * e(x) for i, e in enumerate(self.experts)]).sum(0)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Experts(), Experts()]), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        found: Tensor = self.head(x)
        return found


class Attention(nn.Module):
    """With the map of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, self.map = self.attention(x[None], x[None], x[None])
        found: Tensor = self.head(h[0])
        return found


class Ordered(nn.Module):
    """Keeps its term in a dict with an order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.kept: OrderedDict[str, Tensor] = OrderedDict()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        self.kept["energy"] = h.pow(2).mean()
        found: Tensor = self.head(h)
        return found


class Recurrent(nn.Module):
    """With a state for the next call, and a norm of it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 4), nn.Linear(4, 1)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.cell(x, self.hidden)
        self.hidden, self.energy = h.detach(), h.pow(2).mean()
        found: Tensor = self.head(h)
        return found


class Branching(nn.Module):
    """Its inner part reads a value, so it runs member by member."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            self.energy = (h ** (2 if h.sum().item() > 0 else 3)).mean()
            return torch.tanh(h)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Branching.Inner(), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.inner(x))
        return found


class Buffered(nn.Module):
    """What it keeps is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.register_buffer("energy", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        self.energy = (h**2).mean()
        found: Tensor = self.head(h)
        return found


def _row(name: str, build: Callable[[], nn.Module], term: Callable[[Any, int], Tensor], *more: str) -> Situation:
    """A row.

    Args:
        name: of the row.
        build: makes the model.
        term: of a model with so many axes in front (1 for the members of an array), the loss beside the outputs'.
        more: further forms.
    """

    def outside(array: Any, out: Tensor, y: Tensor) -> Tensor:
        return (out - y).pow(2).flatten(1).mean(1) + term(array, 1)

    return Situation(
        5,
        name,
        reads=lambda m, o, y: F.mse_loss(o, y) + term(m, 0),
        outside=outside,
        build=build,
        x=X,
        y=Y,
        forms=("backward", "forward", *more),
        metrics=lambda: {"mse": F.mse_loss},
    )


def _mean(value: Tensor, axes: int) -> Tensor:
    return value.flatten(axes).mean(-1)


SITUATIONS = [
    _row("divergence", Variational, lambda m, _: 0.1 * m.kl, "member", "study"),
    _row("distribution", Variational, lambda m, n: _mean(m.posterior.scale, n)),
    _row("balance", Mixture, lambda m, _: sum(b.balance for b in m.blocks), "member"),
    _row("containers", Mixture, lambda m, n: sum(_mean(b.kept["gates"][1], n) * b.kept["count"] for b in m.blocks)),
    _row("attention-map", Attention, lambda m, n: _mean(m.map**2, n)),
    _row("ordered-dict", Ordered, lambda m, _: m.kept["energy"]),
    _row("recurrent-state", Recurrent, lambda m, _: m.energy),
    _row("member-by-member", Branching, lambda m, _: m.inner.energy, "member"),
    _row("buffer", Buffered, lambda m, _: m.energy),
]
