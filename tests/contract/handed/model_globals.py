"""Kinds 3 and 5: models whose code writes class attributes and global variables."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.handed_over import Situation, numbers

X, Y = (numbers(12, n, seed=n).float().double() for n in (4, 1))  # a study keeps data in float32
SEEN: dict[str, Any] = {}
CALLS = 0
NUMBERS = itertools.count()


def note(hidden: Tensor) -> None:
    SEEN["hidden"] = hidden


class Counting(nn.Module):
    """Its class counts its calls, and keeps an average; so do global variables."""

    calls = 0
    mean: Any = None

    def __init__(self) -> None:
        global CALLS, NUMBERS
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 6), nn.Linear(6, 1)
        CALLS, Counting.calls, Counting.mean, NUMBERS = 0, 0, None, itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        type(self).calls += 1
        hidden = torch.tanh(self.encoder(x))
        now = hidden.detach().mean(0)
        Counting.mean = now if Counting.mean is None else 0.9 * Counting.mean + 0.1 * now
        found: Tensor = self.head(hidden - Counting.mean)
        return found * (1 + 0.1 * self.calls + 0.01 * CALLS + 0.01 * next(NUMBERS))


class Noting(nn.Module):
    """A function that it calls keeps its features in a global dict; its class keeps their energy."""

    energy: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.encoder(x))
        note(hidden)
        Noting.energy = (hidden**2).mean()
        found: Tensor = self.head(hidden)
        return found


def _reads(model: Any, output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(output, y) + (SEEN["hidden"] ** 2).mean() + model.energy


def _outside(array: Any, output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean((1, 2)) + (SEEN["hidden"] ** 2).mean((1, 2)) + array.energy


SITUATIONS = [
    Situation(3, "model-counts-in-its-class", build=Counting, x=X, y=Y, forms=("backward", "forward", "study")),
    Situation(5, "model-keeps-in-globals", build=Noting, reads=_reads, outside=_outside, x=X, y=Y,
              forms=("backward", "forward", "study")),
]  # fmt: skip
