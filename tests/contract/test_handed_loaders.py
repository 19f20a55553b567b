"""Loaders and functions around data that changes from read to read: as in a loop of one's own, and resumed exactly."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler

from hfta_nb import data
from hfta_nb.errors import DataError, DataWarning
from hfta_nb.train.consecutive import batches_of
from tests.contract.changing_data import SEED, SIZE, Base, N, Randomizable, Slotted, X, Y, assert_equal, reader, taken


class Shuffled(Sampler):
    """Has a generator of NumPy's, and counts its passes."""

    def __init__(self) -> None:
        self.rng, self.epoch = np.random.default_rng(1), 0

    def __len__(self) -> int:
        return N

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from np.roll(self.rng.permutation(N), self.epoch).tolist()


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def collate(items: list[Any], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]) + rng.normal(), torch.stack([y for _, y in items])


class Mining(Sampler):
    """Weights what it has drawn, by a generator that it makes when it is first asked."""

    def __init__(self) -> None:
        self.weights = torch.ones(N)

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        generator = self.__dict__.setdefault("generator", seeded(4))
        rows = torch.multinomial(self.weights, N, generator=generator)
        self.weights = self.weights / 2
        self.weights[rows] += 0.5
        return iter(rows.tolist())


class Noisy(DataLoader):
    """Changes batches by a generator of its own."""

    def __iter__(self) -> Any:
        if not hasattr(self, "noise"):
            self.noise = np.random.default_rng(3)
        return ((x + self.noise.normal(), y) for x, y in super().__iter__())


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "generator": lambda: DataLoader(Base(Randomizable()), SIZE, shuffle=True, generator=seeded(7)),
    "sampler": lambda: DataLoader(Base(), SIZE, sampler=RandomSampler(Base(), True, N, generator=seeded(2))),
    "own sampler": lambda: DataLoader(Base(Randomizable()), SIZE, sampler=Shuffled()),
    "batch sampler": lambda: DataLoader(Base(), batch_sampler=BatchSampler(Shuffled(), SIZE, False)),
    "collate": lambda: DataLoader(
        Base(), SIZE, sampler=Shuffled(), collate_fn=functools.partial(collate, rng=np.random.default_rng(3))
    ),
    "mining": lambda: DataLoader(Base(), SIZE, sampler=Mining()),
    "own loader": lambda: Noisy(Base(), SIZE, shuffle=True, generator=seeded(7)),
    "workers": lambda: DataLoader(Base(Slotted()), SIZE, num_workers=2, shuffle=True, generator=seeded(7)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_give_what_they_give_in_a_loop_of_ones_own(kind: str) -> None:
    loader, expected = LOADERS[kind](), []
    for epoch in range(3):
        for sampler in (loader.sampler, loader.batch_sampler.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        expected += [x for x, _ in loader]
    stream = data.resolve((LOADERS[kind](), (X[:8], Y[:8])))
    source = reader(stream)
    assert_equal(taken(source, 0), expected[:3])
    going = source.epoch(1, 0, [SEED])
    next(going)
    next(going)
    state = source.state()
    source.close()
    resumed = reader(data.resolve((LOADERS[kind](), (X[:8], Y[:8]))))
    resumed.load_state(state)
    assert_equal(taken(resumed, 1, 2) + taken(resumed, 2), expected[5:])


def test_workers_that_live_on_with_data_that_they_change_are_refused() -> None:
    loader = DataLoader(Base(Slotted()), SIZE, num_workers=1, persistent_workers=True)
    with pytest.raises(
        DataError, match=r"got 'dataset.transform.count, dataset.transform.rng'; .*persistent_workers=False"
    ):
        data.resolve((loader, (X[:8], Y[:8])))


def test_workers_that_would_live_on_begin_anew_in_each_pass() -> None:
    loader = DataLoader(Base(), SIZE, num_workers=1, persistent_workers=True, worker_init_fn=np.random.seed)
    with pytest.warns(DataWarning, match=r"worker_init_fn is called anew; let it seed by torch.initial_seed\(\)"):
        data.resolve((loader, (X[:8], Y[:8])))


def test_a_function_that_holds_a_generator() -> None:
    def made() -> Callable[[], Iterator[Any]]:
        rng = np.random.default_rng(1)

        def batches() -> Iterator[Any]:
            for rows in torch.arange(N).split(SIZE):
                yield X[rows] + rng.normal(), Y[rows]

        return batches

    function = made()
    expected = [x for _ in range(2) for x, _ in function()]
    source = reader(data.resolve((made(), (X[:8], Y[:8]))))
    assert_equal(taken(source, 0) + taken(source, 1), expected)


class Counting(IterableDataset):
    """Counts its passes once the last sample was given."""

    def __init__(self, counts: bool) -> None:
        self.passes, self.counts = 0, counts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(N):
            yield X[i] * (1 + self.passes), Y[i]
        self.passes += self.counts


@pytest.mark.parametrize("counts", [True, False])
def test_what_changes_after_the_last_batch_is_told(counts: bool) -> None:
    given = data.from_loader(DataLoader(Counting(counts), SIZE), (X, Y))
    batches = batches_of(given, SIZE, torch.device("cpu"), torch.float64)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(2):
            list(batches.epoch(number, 0, [SEED]))
    found = [str(w.message) for w in told if "a whole pass through it changes dataset.passes" in str(w.message)]
    assert len(found) == counts
