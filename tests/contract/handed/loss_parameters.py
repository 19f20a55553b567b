"""Kind 2: losses that hold parameters, trained with the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError
from tests.contract.handed_over import Regressor, Situation, numbers

X, Y = numbers(12, 4, seed=4).float().double(), numbers(12, 2, seed=2).float().double()
CLASSES = torch.arange(12) % 3
FORMS = ("backward", "losses", "study")
SHARED = torch.zeros(2, dtype=torch.float64, requires_grad=True)
ONE = (FusionError, r"belongs to no array.*hfta\.fuse")


class Uncertainty(nn.Module):
    """Weights of two tasks (Kendall et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_sigma = nn.Parameter(torch.zeros(2))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        tasks = (output - y).square().mean(0)
        return (tasks * torch.exp(-2 * self.log_sigma) + self.log_sigma).sum()


class ArcFace(nn.Module):
    """An angular margin, with class weights that are learned."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(3, 2, generator=generator))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        cosine = F.normalize(output, dim=1) @ F.normalize(self.weight, dim=1).T
        return F.cross_entropy(8 * (cosine - 0.2 * F.one_hot(y, 3)), y)


class CentreLoss(nn.Module):
    """Distances to learned centres, and a count of the calls beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Embedding(3, 2)
        nn.init.zeros_(self.centres.weight)
        self.calls = 0

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return (output - self.centres(y)).square().sum(1).mean() * min(1.0, self.calls / 5)


class WithBuffer(nn.Module):
    """Batch norm, with a learned scale or without, and a buffer that is written before the loss is divided by it."""

    average: Tensor

    def __init__(self, width: int = 2, affine: bool = True) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=affine)
        self.register_buffer("average", torch.ones(()))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(self.norm(output.square()), y)
        with torch.no_grad():
            self.average.mul_(0.9).add_(loss, alpha=0.1)
        return loss / self.average


class Multitask(Regressor):
    """Has an attribute of the name of the loss."""

    def __init__(self) -> None:
        super().__init__(2)
        self.loss = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.loss(super().forward(x))
        return found


def sequential() -> nn.Module:
    """Its forward goes through its children."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def two() -> Regressor:
    return Regressor(2)


def hidden() -> object:
    """A module within a function."""
    inner = Uncertainty().double()
    return lambda output, y: inner(output, y)


def in_list() -> object:
    parts = [torch.zeros(2, dtype=torch.float64, requires_grad=True)]
    return lambda output, y: ((output - y).square().mean(0) * torch.exp(-parts[0]) + parts[0]).sum()


def by_global(output: Tensor, y: Tensor) -> Tensor:
    return ((output - y).square().mean(0) * torch.exp(-SHARED) + SHARED).sum()


REFUSED = dict.fromkeys(("backward", "losses", "study"), ONE)

SITUATIONS = [
    Situation(2, "uncertainty", Uncertainty, two, X, Y, handed=hfta.fuse, forms=FORMS, long=("study",)),
    Situation(2, "uncertainty of a Sequential", Uncertainty, sequential, X, Y, handed=hfta.fuse, forms=FORMS),
    Situation(2, "arcface", ArcFace, two, X, CLASSES, handed=hfta.fuse, forms=FORMS, long=("study",)),
    Situation(2, "centre loss that counts", CentreLoss, two, X, CLASSES, handed=hfta.fuse, forms=FORMS),
    Situation(2, "batch norm and a buffer", WithBuffer, two, X, Y, handed=hfta.fuse, forms=FORMS, long=("study",)),
    Situation(
        2, "model with a layer named loss", Uncertainty, Multitask, X, Y, handed=hfta.fuse, forms=FORMS, long=("study",)
    ),
    Situation(2, "not fused", Uncertainty, two, X, Y, forms=FORMS[:2], refused=REFUSED),
    Situation(2, "in a closure", hidden, two, X, Y, forms=FORMS, refused=REFUSED, long=("study",)),
    Situation(2, "in a list", in_list, two, X, Y, forms=FORMS, refused=REFUSED),
    Situation(2, "global", lambda: by_global, two, X, Y, forms=FORMS, refused=REFUSED, long=("study",)),
]
