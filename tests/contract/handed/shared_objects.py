"""Kind 3: models and losses with one object under several names, or within another value, that calls change."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.handed_over import Situation, numbers

X, Y = (numbers(12, n, seed=n).float().double() for n in (4, 1))  # a study keeps data in float32


class Context:
    """What the parts of a model share: features of this call, and a count of all calls."""

    def __init__(self) -> None:
        self.features: list[Tensor] = []
        self.calls = 0


class Part(nn.Module):
    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context, self.layer = context, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.layer(x))
        self.context.features.append(found)
        return found * (1 + 1 / self.context.calls)


class OfParts(nn.Module):
    """Its parts hold the same context, whose features are part of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.context = Context()
        self.first, self.second, self.head = Part(self.context), Part(self.context), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.context.calls += 1
        self.context.features.clear()
        found: Tensor = self.head(self.second(self.first(x)))
        return found + sum(feature.mean() for feature in self.context.features)


class Nested(nn.Module):
    """A list that an object holds as well, the object in a list, and each call another list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.context = nn.Linear(4, 1), Context()
        self.features, self.contexts, self.kept = self.context.features, [self.context], [[0.0]]
        self.counts = self.kept[0]

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.head(x))
        self.features.append(found.detach().mean())
        self.contexts[0].calls += 1
        self.counts[0] += 1.0
        self.kept = [self.counts]
        return (found + sum(self.context.features)) / (self.context.calls + self.kept[0][0])


class Averaged(nn.Module):
    """A trained loss, whose parts divide by an average that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.context = nn.Parameter(torch.ones(1)), Context()
        self.same = self.context

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output * self.scale, y)
        self.context.features = [loss.detach() + sum(self.same.features)]
        return loss / (1 + self.same.features[0])


def row(name: str, build: Callable[[], nn.Module]) -> Situation:
    return Situation(3, name, build=build, x=X, y=Y, forms=("backward", "forward", "study"), long=("study",))


SITUATIONS = [
    row("object of several parts", OfParts),
    row("object within a list", Nested),
    Situation(3, "object twice in a trained loss", Averaged, x=X, y=Y, forms=("backward", "losses"), handed=hfta.fuse),
]
