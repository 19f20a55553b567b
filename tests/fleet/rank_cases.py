"""What two ranks train together and one process trains alone: the same code, with or without `DataParallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import DistributedError

Spread = Callable[..., Any]
Found = dict[str, Tensor]

SIZES = (10, 10, 7, 10, 10, 1, 10, 10)
"""Of the mini-batches: shares that differ, and one in which a rank has no sample."""


def batches(*shape: int, classes: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(3)
    for size in SIZES:
        x = torch.randn(size, *shape, generator=draw, dtype=torch.float64)
        yield x, torch.randint(classes, (size,), generator=draw)


def fused(build: Callable[[], nn.Module], members: int = 3) -> FusedArray:
    made = []
    for seed in range(members):
        torch.manual_seed(seed)
        made.append(build().double())
    return hfta.fuse(made)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def kept(array: FusedArray, losses: list[Tensor]) -> Found:
    tensors = {**dict(array.named_parameters()), **dict(array.named_buffers())}
    return {"losses": torch.stack(losses), **{name: value.detach().clone() for name, value in tensors.items()}}


def sgd(spread: Spread) -> Found:
    array = fused(mlp)
    parallel, optimizer = spread(array), hfta.optim.SGD(array, lr=[0.1, 0.2, 0.3], momentum=0.9)
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        losses.append(parallel.backward(F.cross_entropy, x, y))
        optimizer.step()
    return kept(array, losses) | {"replayed": torch.tensor("recorded" in set(array.explain()["how"]))}


def adam_clipped_and_accumulated(spread: Spread) -> Found:
    array = fused(mlp)
    parallel, optimizer = spread(array), hfta.optim.Adam(array, lr=[0.01, 0.02, 0.03])
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        parallel.backward(lambda out, y: F.cross_entropy(out, y), x, y)
        losses.append(parallel.backward(F.cross_entropy, x.flip(1), y, only=["0.weight", "0.bias"]))
        hfta.optim.clip_grad_norm_(array, 0.5)
        optimizer.step()
    return kept(array, losses)


def masked(spread: Spread) -> Found:
    """Targets are missing, on one rank now and then all."""
    array = fused(mlp)
    parallel, optimizer = spread(array), hfta.optim.SGD(array, lr=[0.1, 0.2, 0.3])
    losses = []
    for x, y in batches(4):
        known = torch.arange(len(y)) < len(y) // 3 + 1
        optimizer.zero_grad()
        losses.append(parallel.backward(hfta.losses.for_task("classification"), x, {"y": y, "mask": known}))
        optimizer.step()
    return kept(array, losses)


def weighted(spread: Spread) -> Found:
    """A loss whose denominator depends on the targets, some of which are ignored: on one rank now and then all."""
    array = fused(mlp)
    parallel, optimizer = spread(array), hfta.optim.SGD(array, lr=0.3)
    weight = torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64)
    loss = hfta.losses.cross_entropy(weight=weight, ignore_index=2, label_smoothing=hfta.per_member([0.0, 0.1, 0.2]))
    losses = []
    for x, y in batches(4):
        y = y.clamp(max=1)
        y[len(y) // 2 + 1 :] = 2
        optimizer.zero_grad()
        losses.append(parallel.backward(loss, x, y, scale=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)))
        optimizer.step()
    return kept(array, losses)


def coupled(spread: Spread) -> Found:
    """A loss over pairs of samples, beside it what the metrics of a step are."""
    array = fused(mlp)
    parallel, optimizer = spread(array), hfta.optim.SGD(array, lr=0.01)

    def pairs(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        alike = (y[:, None] == y[None]).to(out)
        distance = (out[:, None] - out[None]).square().sum(-1)
        return (distance * (2 * alike - 1)).mean(), out.argmax(1).eq(y).sum()

    losses, aux = [], []
    for x, y in batches(4):
        optimizer.zero_grad()
        found, hits = parallel.backward(pairs, x, hfta.per_member(torch.stack([y] * 3)), has_aux=True)
        losses.append(found)
        aux.append(hits)
        optimizer.step()
    return kept(array, losses) | {"hits": torch.stack(aux)}


class Normed(nn.Module):
    def __init__(self, conv: bool) -> None:
        super().__init__()
        self.first: nn.Module = nn.Conv2d(1, 4, 2) if conv else nn.Linear(4, 4)
        self.norm: nn.Module = nn.BatchNorm2d(4) if conv else nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.norm(self.first(x)))
        return self.last(out if out.ndim == 2 else out.mean((2, 3)))  # type: ignore[no-any-return]


def _normed(spread: Spread, conv: bool, batch_norm: str = "sync") -> Found:
    array = fused(lambda: Normed(conv))
    parallel = spread(array, batch_norm=batch_norm)
    optimizer, losses = hfta.optim.SGD(array, lr=[0.1, 0.2, 0.3]), []
    for x, y in batches(*((1, 4, 4) if conv else (4,))):
        if len(y) == 1:
            continue
        array.train()
        optimizer.zero_grad()
        losses.append(parallel.backward(F.cross_entropy, x, y))
        optimizer.step()
        array.eval()
        losses.append(parallel.evaluate(F.cross_entropy, x, y))
    return kept(array, losses)


def batch_norm(spread: Spread) -> Found:
    return _normed(spread, conv=False)


def batch_norm_of_images(spread: Spread) -> Found:
    return _normed(spread, conv=True)


def local_batch_norm(spread: Spread) -> Found:
    return _normed(spread, conv=False, batch_norm="local")


def one_sample(spread: Spread) -> Found:
    """A batch norm over images, of a mini-batch of which one rank has nothing."""
    array = fused(lambda: Normed(True))
    parallel = spread(array)
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(1, 1, 4, 4)
    losses = [parallel.backward(F.cross_entropy, x, torch.tensor([1])) for _ in range(2)]
    return kept(array, losses) | {n: p.grad.clone() for n, p in array.named_parameters() if p.grad is not None}


def dropout(spread: Spread) -> Found:
    """Masks of samples that are all alike."""
    array = fused(lambda: nn.Dropout(0.5))
    masks = spread(array).evaluate(lambda out, y: out, torch.ones(64, 8, dtype=torch.float64))
    return {"masks": masks}


def refused(spread: Spread) -> Found:
    """How many of the calls that can't be shared out are refused."""
    array = fused(mlp)
    parallel, x = spread(array), torch.ones(4, 4, dtype=torch.float64)
    turned = spread(fused(lambda: nn.Sequential(mlp(), _Turned())))
    calls = [
        lambda: parallel.backward(lambda out, y: out.sum(), (x, torch.ones(3))),
        lambda: turned.backward(lambda out, y: out.sum(), x),
        lambda: parallel.backward(lambda out, y: out.sum(), 3),
    ]
    count = 0
    for call in calls:
        try:
            call()
        except DistributedError:
            count += 1
    return {"refused": torch.tensor(count)}


class _Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.T


EQUAL = (sgd, adam_clipped_and_accumulated, masked, weighted, coupled, batch_norm, batch_norm_of_images, one_sample)
"""What is the same on one device."""

OTHER = (local_batch_norm, dropout, refused)
"""What is not."""
