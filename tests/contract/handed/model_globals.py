"""Kinds 3 and 5: models whose code writes class attributes and global variables, or one value under two names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FusionError
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


class Aliased(nn.Module):
    """A list, a tensor and a random stream under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.calls: list[int] = [0]
        self.mean, self.stream = torch.zeros(1, dtype=torch.float64), torch.Generator().manual_seed(0)
        self.head.calls, self.same, self.again = self.calls, self.mean, self.stream  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        self.mean += 0.1
        noise = [torch.rand((), generator=g, dtype=torch.float64) for g in (self.stream, self.again)]
        found: Tensor = self.head(x)
        return found * (1 + 0.1 * self.head.calls[0] + self.same) + noise[0] - noise[1]  # type: ignore[index]


class Viewed(Aliased):
    """With a view of its tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.same = self.mean[:]


class ViewedByNumPy(nn.Module):
    """An array, and a view of it that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = nn.Linear(4, 1), np.zeros((2, 1))
        self.row = self.table[0]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        self.row += found.detach().mean(0).numpy()
        return found + torch.from_numpy(self.table.sum(0))


class ViewedBuffer(nn.Module):
    """A buffer that is changed, and a view of it; the other way around, as asked."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(2, 1, dtype=torch.float64))
        self.row = self.get_buffer("mean")[0]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        with torch.no_grad():
            self.changed().add_(found.detach().mean(0))
        return found + self.row + self.get_buffer("mean").sum(0)

    def changed(self) -> Tensor:
        return self.get_buffer("mean")


class ChangedByView(ViewedBuffer):
    def changed(self) -> Tensor:
        return self.row


class ViewedParameter(nn.Module):
    """The values of a parameter by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1, dtype=torch.float64)
        nn.init.ones_(self.head.weight)
        self.seen = self.head.weight.detach()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        return found * self.seen.norm()


class ViewingLoss:
    """With a view of what it keeps."""

    def __init__(self) -> None:
        self.mean = torch.zeros(3, dtype=torch.float64)
        self.first = self.mean[:1]

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.mean.add_(0.1)
        return F.mse_loss(output, y) * (1 + self.first[0])


class OverlappingParameters(nn.Module):
    """Parameters of one memory, which is not one parameter by two names."""

    def __init__(self, first: slice, second: slice) -> None:
        super().__init__()
        memory = numbers(6)
        self.a, self.b = nn.Parameter(memory[first]), nn.Parameter(memory[second])

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.a * self.b).sum(-1, keepdim=True)


class OverlappingBuffers(nn.Module):
    """Of which a call writes into one."""

    p: Tensor
    q: Tensor

    def __init__(self) -> None:
        super().__init__()
        memory = numbers(6)
        self.a = nn.Parameter(numbers(4))
        self.register_buffer("p", memory[:4])
        self.register_buffer("q", memory[2:])

    def forward(self, x: Tensor) -> Tensor:
        found = (x * self.a * self.q.clone()).sum(-1, keepdim=True)
        with torch.no_grad():
            self.p.add_(0.1)
        return found


_FIRST, _LAST, _WHOLE = slice(0, 4), slice(2, 6), slice(1, 5)
_VIEW = dict.fromkeys(("backward", "forward", "losses"), (FusionError, "mean.*keeps a view"))


def _reads(model: Any, output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(output, y) + (SEEN["hidden"] ** 2).mean() + model.energy


def _outside(array: Any, output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean((1, 2)) + (SEEN["hidden"] ** 2).mean((1, 2)) + array.energy


SITUATIONS = [
    Situation(3, "model-counts-in-its-class", build=Counting, x=X, y=Y, forms=("backward", "forward", "study")),
    Situation(5, "model-keeps-in-globals", build=Noting, reads=_reads, outside=_outside, x=X, y=Y,
              forms=("backward", "forward", "study")),
    Situation(3, "model-one-value-twice", build=Aliased, x=X, y=Y, forms=("backward", "forward", "study")),
    Situation(3, "model-view", build=Viewed, x=X, y=Y, forms=("backward", "forward"), refused=_VIEW),
    *(
        Situation(3, f"model-view-{name}", build=build, x=X, y=Y, forms=("backward", "forward"),
                  refused=dict.fromkeys(("backward", "forward"), (FusionError, f"{keys}.*keeps a view")))
        for name, build, keys in (
            ("numpy", ViewedByNumPy, "row.*table|table.*row"), ("buffer", ViewedBuffer, "row, mean"),
            ("of-buffer", ChangedByView, "row, mean"), ("parameter", ViewedParameter, "seen, head.weight"),
            ("parameters", lambda: OverlappingParameters(_FIRST, _LAST), "a, b"),
            ("tied-data", lambda: OverlappingParameters(_WHOLE, _WHOLE), "a, b"),
            ("buffers", OverlappingBuffers, "p, q|q, p"),
        )
    ),
    Situation(3, "loss-view", ViewingLoss, x=X, y=Y, forms=("backward", "losses"), refused=_VIEW),
]  # fmt: skip
