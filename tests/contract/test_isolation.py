"""Isolation: one of sixteen members diverges at step 3; the other fifteen stay bitwise equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.members.tree import flatten
from tests.contract.serial import loss_of, make

MEMBERS, POISONED, WHEN, STEPS = 16, 5, 3, 10
OTHERS = [i for i in range(MEMBERS) if i != POISONED]


class Last(nn.Module):
    """The last output of a recurrent layer, through dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 6, 2, batch_first=True, dropout=0.2)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 8),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 3),
    )


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(40, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (_cnn, (2, 8, 8)),
    "mlp": (_mlp, (5,)),
    "transformer": (_transformer, (5, 4)),
    "lstm": (Last, (5, 4)),
}


@dataclass
class Run:
    """What is left of a training."""

    array: FusedArray
    losses: list[Tensor]
    optimizer: Any
    lr_scheduler: Any


def _poison_weight(array: FusedArray, x: Tensor) -> None:
    with torch.no_grad():
        next(array.parameters())[POISONED].view(-1)[0] = float("nan")


def _poison_input(array: FusedArray, x: Tensor) -> None:
    x[POISONED, 0] = float("inf")


def _poison_gradient(array: FusedArray, x: Tensor) -> None:
    grad = next(array.parameters()).grad
    assert grad is not None
    grad[POISONED].view(-1)[0] = float("inf")


BEFORE = {"weight": _poison_weight, "input": _poison_input}
AFTER = {"gradient": _poison_gradient}


def _train(net: str, optimizer: str, poison: str | None, block: int, device: torch.device) -> Run:
    build, shape = NETS[net]
    array = hfta.fuse(make(build, MEMBERS, torch.float32, device), list(range(100, 100 + MEMBERS)))
    array.block_size = block
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(MEMBERS, 6, *shape, generator=numbers).to(device)
    y = torch.randn(6, 3, generator=numbers).to(device)
    settings = {"momentum": 0.9} if optimizer == "SGD" else {}
    made = getattr(hfta.optim, optimizer)(array, lr=[1e-2 / (i + 1) for i in range(MEMBERS)], **settings)
    lr_scheduler = hfta.optim.lr_scheduler.StepLR(made, step_size=[2 + i % 4 for i in range(MEMBERS)], gamma=0.5)
    losses = []
    for step in range(STEPS):
        made.zero_grad()
        if step == WHEN and poison in BEFORE:
            BEFORE[poison](array, x)
        losses.append(array.backward(loss_of, hfta.per_member(x), y))
        if step == WHEN and poison in AFTER:
            AFTER[poison](array, x)
        hfta.optim.clip_grad_norm_(array, 0.5)
        made.step()
        lr_scheduler.step()
    return Run(array, losses, made, lr_scheduler)


def _rows(tree: Any) -> list[Any]:
    """The rows of the fifteen in everything of a state that has rows, and what has none."""
    leaves = flatten(tree)[0]
    return [v[OTHERS] if isinstance(v, Tensor) and v.ndim and len(v) == MEMBERS else v for v in leaves]


def _same(good: Any, bad: Any) -> None:
    for u, v in zip(_rows(good), _rows(bad), strict=True):
        assert torch.equal(u, v) if isinstance(u, Tensor) else u == v


def _finite(run: Run, member: int) -> bool:
    return all(bool(v[member].isfinite().all()) for v in (*run.losses, *run.array.parameters()))


@pytest.mark.pairs
@pytest.mark.each("net", "poison", every=2)
@pytest.mark.parametrize("poison", ["weight", "input", "gradient"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("block", [MEMBERS, 3])
@pytest.mark.parametrize("net", list(NETS))
def test_the_other_fifteen_do_not_notice(
    net: str, block: int, optimizer: str, poison: str, device: torch.device
) -> None:
    good = _train(net, optimizer, None, block, device)
    bad = _train(net, optimizer, poison, block, device)
    assert _finite(good, POISONED)
    assert not _finite(bad, POISONED), "the poison did nothing"
    for u, v in zip(good.losses, bad.losses, strict=True):
        assert torch.equal(u[OTHERS], v[OTHERS])
    _same(dict(good.array.named_parameters()), dict(bad.array.named_parameters()))
    _same(dict(good.array.named_buffers()), dict(bad.array.named_buffers()))
    _same([p.grad for p in good.array.parameters()], [p.grad for p in bad.array.parameters()])
    _same(good.array.generators.state_dict(), bad.array.generators.state_dict())
    _same(good.optimizer.state_dict(), bad.optimizer.state_dict())
    _same(good.lr_scheduler.state_dict(), bad.lr_scheduler.state_dict())
