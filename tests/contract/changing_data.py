"""Data whose samples change from read to read, and the user's own loops over it."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from hfta_nb.data import order
from hfta_nb.train.batches import Batches
from hfta_nb.train.consecutive import batches_of
from tests.contract.handed_over import numbers

N, SIZE, SEED = 24, 8, 5
X, Y = numbers(N, 4), numbers(N, 1, seed=1)


class Base(Dataset):
    """Samples that a transform changes."""

    def __init__(self, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return (X[i] if self.transform is None else self.transform(X[i])), Y[i]


class Randomizable:
    """A transform as MONAI's, with a generator of its own."""

    def __init__(self) -> None:
        self.R = np.random.RandomState(1)

    def randomize(self) -> None:
        self.shift = float(self.R.rand())

    def __call__(self, x: Tensor) -> Tensor:
        self.randomize()
        return x + self.shift


class Compose:
    def __init__(self, *transforms: Callable[[Tensor], Tensor]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class Slotted:
    __slots__ = ("count", "rng")

    def __init__(self) -> None:
        self.rng, self.count = random.Random(1), 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.rng.random() * self.count


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("reads", torch.zeros((), dtype=torch.float64))
        self.generator = torch.Generator().manual_seed(2)

    def forward(self, x: Tensor) -> Tensor:
        self.reads += 1
        return x + torch.rand((), generator=self.generator) + self.reads


def in_closure() -> Callable[[Tensor], Tensor]:
    rng, reads = np.random.default_rng(1), [0]

    def add(x: Tensor) -> Tensor:
        reads[0] += 1
        return x + rng.normal() + reads[0] // 5

    return add


def shifted(draw: Callable[[], float]) -> Callable[[Tensor], Tensor]:
    return lambda x, draw=draw: x + draw()


def noisy(x: Tensor, rng: np.random.Generator) -> Tensor:
    return x + rng.normal()


class Counting(Base):
    """Changes after every `every` reads."""

    def __init__(self, every: int) -> None:
        self.reads, self.phase, self.every = 0, 0, every

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.reads = (self.reads + 1) % self.every
        self.phase += self.reads == 0
        return X[i] + self.phase, Y[i]


class Rarely(Base):
    """Changes where one sample is read."""

    def __init__(self) -> None:
        self.phase = 0

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.phase += i == 5
        return X[i] + self.phase, Y[i]


class Later(Base):
    """Has an attribute from its first read on."""

    def __init__(self) -> None:
        pass

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        rng = self.__dict__.setdefault("rng", np.random.default_rng(3))
        return X[i] + rng.normal(), Y[i]


class OfClass(Base):
    rng = np.random.default_rng(4)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + self.rng.normal(), Y[i]


GLOBAL = random.Random(9)


class OfModule(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + GLOBAL.random(), Y[i]


class Caching(Base):
    """Augments each sample once."""

    def __init__(self) -> None:
        self.rng, self.cache = np.random.default_rng(3), {}

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if i not in self.cache:
            self.cache[i] = X[i] + self.rng.normal()
        return self.cache[i], Y[i]


class Cached(Base):
    """The same by `functools.lru_cache`."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    @functools.lru_cache(None)  # noqa: B019
    def made(self, i: int) -> Tensor:
        return X[i] + self.rng.normal()

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.made(i), Y[i]


class Told(Base):
    def __init__(self) -> None:
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.rng = epoch, np.random.default_rng(epoch)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] * self.epoch + self.rng.normal(), Y[i]


class Iterated(Base):
    def __init__(self) -> None:
        self.number = itertools.count()

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + next(self.number), Y[i]


class Mixing(Base):
    """Mixes a sample with the one before."""

    def __init__(self) -> None:
        self.last = torch.zeros(4, dtype=torch.float64)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        found, self.last = X[i] + self.last / 2, X[i]
        return found, Y[i]


KINDS: dict[str, Callable[[], Dataset]] = {
    "numpy": lambda: Base(functools.partial(noisy, rng=np.random.default_rng(3))),
    "bound method": lambda: Base(shifted(np.random.default_rng(2).normal)),
    "nested": lambda: Base(Compose(Compose(Randomizable()), Randomizable())),
    "slots": lambda: Base(Slotted()),
    "module": lambda: Base(Buffered()),
    "closure": lambda: Base(in_closure()),
    "counter": lambda: Counting(1),
    "late counter": lambda: Counting(17),
    "rarely": Rarely,
    "later": Later,
    "class": OfClass,
    "global": OfModule,
    "cache": Caching,
    "set_epoch": Told,
    "iterator": Iterated,
    "mixing": Mixing,
    "subset": lambda: Subset(Base(Randomizable()), range(N)),
}


def begin() -> None:
    OfClass.rng = np.random.default_rng(4)
    GLOBAL.seed(9)


def given(kind: str) -> Dataset:
    """A data set as a user makes it, afresh."""
    begin()
    return KINDS[kind]()


def own_loop(dataset: Any, passes: int = 3) -> list[Tensor]:
    """The inputs of all batches in a loop of one's own."""
    found = []
    for epoch in range(passes):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        batches = order(N, SEED, epoch).split(SIZE)
        found += [torch.stack([dataset[i][0] for i in rows.tolist()]) for rows in batches]
    return found


def reader(stream: Any) -> Batches:
    return batches_of(stream, SIZE, torch.device("cpu"), torch.float64)


def taken(source: Batches, epoch: int, start: int = 0) -> list[Tensor]:
    return [batch.x for batch in source.epoch(epoch, start, [SEED])]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
