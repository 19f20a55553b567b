"""Kind 10: targets of several kinds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import MemberError
from tests.contract.handed_over import Regressor, Situation, numbers

CLASSES, VALUES, WEIGHTS = torch.arange(12) % 3, numbers(12, seed=1), numbers(12, seed=2).abs()
MISSING = torch.where(torch.arange(12) % 4 == 0, torch.nan, VALUES)


class Both(NamedTuple):
    kind: Tensor
    value: Tensor


class Heads(Regressor):
    """Three classes and a value."""

    def __init__(self) -> None:
        super().__init__(4)


class Words(nn.Module):
    """Takes whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(x).mean(1)).squeeze(-1)
        return found


def of_both(o: Tensor, kind: Tensor, value: Tensor) -> Tensor:
    return F.cross_entropy(o[:, :3], kind) + F.mse_loss(o[:, 3], value)


def masked(o: Tensor, y: Tensor) -> Tensor:
    there = ~y.isnan()
    return torch.where(there, o.squeeze(-1) - y.nan_to_num(), 0).pow(2).sum() / there.sum()


def weighted(o: Tensor, y: Any) -> Tensor:
    value, weight = y
    return ((o.squeeze(-1) - value) ** 2 * weight).sum() / weight.sum()


def where_true(o: Tensor, y: Any) -> Tensor:
    value, mask = y
    return torch.where(~mask, o.squeeze(-1) - value, 0).abs().sum()


def numbered(o: Tensor, y: Any) -> Tensor:
    return (F.l1_loss(o.squeeze(-1), y[0], reduction="none") * (y[1] + 1)).mean()


SITUATIONS = [
    Situation(
        10,
        "dict",
        lambda: lambda o, y: of_both(o, y["class"], y["value"]),
        build=Heads,
        y={"class": CLASSES, "value": VALUES},
        metrics=lambda: {"right": lambda o, y: (o[:, :3].argmax(1) == y["class"]).double().mean()},
    ),
    Situation(10, "tuple", lambda: lambda o, y: of_both(o, *y), build=Heads, y=(CLASSES, VALUES)),
    Situation(10, "names", lambda: lambda o, y: of_both(o, y.kind, y.value), build=Heads, y=Both(CLASSES, VALUES)),
    Situation(
        10,
        "nested",
        lambda: lambda o, y: of_both(o, y["a"][0], y["b"]["c"]) * y["a"][1].mean(),
        build=Heads,
        y={"a": (CLASSES, WEIGHTS), "b": {"c": VALUES}},
    ),
    Situation(10, "weights", lambda: weighted, y=(VALUES, WEIGHTS)),
    Situation(10, "missing", lambda: masked, y=MISSING, metrics=lambda: {"off": masked}),
    Situation(10, "truth", lambda: where_true, y=(VALUES, CLASSES == 0)),
    Situation(
        10,
        "complex",
        lambda: lambda o, y: (o[:, 0] - y.real).square().mean() + (o[:, 1] - y.imag).square().mean(),
        build=Heads,
        y=torch.complex(VALUES, WEIGHTS).to(torch.complex64),
    ),
    Situation(10, "index", lambda: numbered, y=(VALUES, torch.arange(12))),
    Situation(10, "whole-inputs", lambda: F.mse_loss, build=Words, x=(torch.arange(24) % 5).view(12, 2), y=VALUES),
    Situation(
        10,
        "whole-inputs-of-a-linear-layer",
        lambda: F.mse_loss,
        x=torch.arange(48).view(12, 4),
        forms=("study",),
        refused={"study": (MemberError, r"got Long and Double.* give x.float\(\), or astype")},
    ),
]
