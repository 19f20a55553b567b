"""Kind 7: data whose sample i is not always the same is what it is in a loop of one's own, and so is what is trained.

The reference reads the data set as a user's loop does, in the study's order of samples, and validates after each epoch.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb.data import order, reading_state
from hfta_nb.errors import DataWarning, StudyError
from hfta_nb.train.group_run import GroupRun
from tests.contract.changing_data import (
    KINDS,
    SEED,
    SIZE,
    Base,
    Cached,
    Counting,
    Iterated,
    N,
    X,
    Y,
    assert_equal,
    begin,
    given,
    in_closure,
    own_loop,
    reader,
    taken,
)
from tests.contract.handed_over import Regressor


@pytest.fixture(autouse=True)
def as_at_first() -> None:
    """The generators of a class and of a module begin anew in each test."""
    begin()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_loop_of_ones_own_for_each_reader(kind: str) -> None:
    expected = own_loop(given(kind))
    stream = data.resolve((given(kind), TensorDataset(X[:8], Y[:8])))
    assert isinstance(stream, data.Stream)  # not frozen in memory
    one, other = reader(stream), reader(stream)
    assert_equal(taken(one, 0), expected[:3])
    assert_equal(taken(other, 0), expected[:3])  # as if it had read alone
    going = one.epoch(1, 0, [SEED])
    found = [next(going).x]
    state = one.state()  # in the midst of a pass
    assert_equal(taken(other, 1), expected[3:6])
    assert_equal([*found, *(batch.x for batch in going)], expected[3:6])
    resumed = reader(data.resolve((given(kind), TensorDataset(X[:8], Y[:8]))))
    resumed.load_state(state)
    assert_equal(taken(resumed, 1, 1) + taken(resumed, 2), expected[4:])


def test_what_a_function_caches_is_made_anew_for_each_reader() -> None:
    expected = own_loop(Cached())
    Cached.made.cache_clear()
    stream = data.resolve((Cached(), TensorDataset(X[:8], Y[:8])))
    for _ in range(2):
        one = reader(stream)
        assert_equal([x for epoch in range(3) for x in taken(one, epoch)], expected)
    resumed = reader(stream)
    resumed.load_state(one.state())
    with pytest.warns(DataWarning, match=r"Cached.made: what functools.lru_cache kept can't be put back"):
        taken(resumed, 3)


def test_a_look_that_moves_an_iterator_on_is_told() -> None:
    numbers = (float(n) for n in range(1000))
    with pytest.warns(DataWarning, match=r"samples differ each time that they are read; where that is an iterator"):
        data.resolve((Base(lambda x: x + next(numbers)), TensorDataset(X[:8], Y[:8])))


def test_looking_at_data_leaves_it_as_it_was() -> None:
    dataset, log = Counting(1), []
    dataset.log = log
    sampled = Base(in_closure())
    for one in (dataset, sampled, Iterated()):
        data.resolve((one, TensorDataset(X[:8], Y[:8])))
    assert (dataset.reads, dataset.phase) == (0, 0)
    assert sampled.transform is not None
    assert torch.equal(sampled.transform(X[0]), in_closure()(X[0]))


def test_data_that_is_always_the_same_is_kept_in_memory() -> None:
    class Steady(Base):
        """Has a generator that only its construction uses, a cache, and a log."""

        def __init__(self) -> None:
            self.noise = torch.from_numpy(np.random.default_rng(3).normal(size=(N, 4)))
            self.rng, self.cache, self.log, self.opened = random.Random(1), {}, [], None

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            self.opened = self.opened or "a file"
            self.log.append(i)
            return self.cache.setdefault(i, X[i] + self.noise[i]), Y[i]

    assert isinstance(data.resolve(Steady()), hfta.Data)


def trained_alone(training: Any, validation: Any, seed: int, epochs: int, steps: int) -> tuple[list[float], ...]:
    """Losses of training and validation of a plain module in a loop of one's own."""
    torch.manual_seed(seed)
    model = Regressor().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in itertools.count():
            whole = training.dataset if isinstance(training, Subset) else training
            if hasattr(whole, "set_epoch"):
                whole.set_epoch(epoch)
            for rows in order(len(training), SEED, epoch).split(SIZE):
                items = [training[i] for i in rows.tolist()]
                yield torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])

    stream, losses, validated = batches(), [], []
    for _ in range(epochs):
        here = []
        for x, y in itertools.islice(stream, steps):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            here.append(loss.item())
        losses.append(sum(here) / len(here))
        items = [validation[i] for i in range(len(validation))]
        with torch.no_grad():
            out = model(torch.stack([x for x, _ in items]))
            validated.append(F.mse_loss(out, torch.stack([y for _, y in items])).item())
    return losses, validated


def parts(kind: str) -> tuple[Dataset, Dataset]:
    """Training and validation of one data set, whose state both change."""
    whole = given(kind)
    return Subset(whole, range(16)), Subset(whole, range(16, N))


def study(given: Any, place: Path, **options: Any) -> hfta.Study:
    own = {"epochs": 4, "loss": F.mse_loss, "device": "cpu", "dtype": "float64", "batch_size": SIZE, "lr": 0.01}
    own |= {"optimizer": "adam", "directory": place, "seed": SEED}
    return hfta.Study(Regressor, {"seed": [0, 1]}, given, **{**own, **options})


def assert_as_alone(made: hfta.Study, expected: list[tuple[list[float], ...]]) -> None:
    for variant, (losses, validated) in zip(made.variants, expected, strict=True):
        curves = made.history.members[variant.id].curves
        assert curves["train_loss"].values == pytest.approx(losses, abs=1e-10)
        assert curves["val_loss"].values == pytest.approx(validated, abs=1e-10)


def interrupted(made: hfta.Study, steps: int) -> None:
    """Stop after so many steps."""
    control, original = hfta.Control(), GroupRun._train_step

    def counted(self: GroupRun, batch: Any) -> Iterator[Any]:
        yield from original(self, batch)
        if self.steps == steps:
            control.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupRun, "_train_step", counted)
        list(made.run(control))


@pytest.mark.parametrize(
    ("kind", "steps", "after"),
    [
        ("nested", 2, 3),
        pytest.param("late counter", 3, 4, marks=pytest.mark.long),  # an epoch ends in the midst of a pass
        pytest.param("set_epoch", 3, 3, marks=pytest.mark.long),
        pytest.param("cache", 2, 2, marks=pytest.mark.long),
        ("closure", 3, 5),
    ],
)
def test_a_study_trains_checks_and_goes_on_as_a_loop_of_ones_own(
    kind: str, steps: int, after: int, tmp_path: Path
) -> None:
    expected = [trained_alone(*parts(kind), seed, 4, steps) for seed in (0, 1)]
    whole = study(parts(kind), tmp_path / "whole", steps_per_epoch=steps)
    list(whole.run())
    assert_as_alone(whole, expected)
    assert whole.check(members=[1])["equal"].all()
    interrupted(study(parts(kind), tmp_path / "half", steps_per_epoch=steps), after)
    family = replace(hfta.family(Regressor), loss=F.mse_loss)
    again = hfta.Study.load(tmp_path / "half", family=family, data=parts(kind))
    list(again.run(resume=True))
    assert_as_alone(again, expected)


def test_arrays_apart_get_what_each_gets_alone(tmp_path: Path) -> None:
    reads = Counting(1)
    made = study((reads, Subset(Base(), range(8))), tmp_path, epochs=2, padding="never")
    made_alone = study((Counting(1), Subset(Base(), range(8))), tmp_path / "alone", epochs=2, serial=True)
    for one in (made, made_alone):
        list(one.run())
        assert_as_alone(one, [trained_alone(Counting(1), Subset(Base(), range(8)), s, 2, 3) for s in (0, 1)])
    assert reads.phase == 2 * N  # as in a loop of one's own: what was read to look at it is not in there


@pytest.mark.parametrize("caught", [True, False])
def test_check_finds_augmentation_that_is_frozen(caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if caught:  # the mutation: whatever is read is taken to be always the same
        monkeypatch.setattr(reading_state.Held, "changeable", False)
        monkeypatch.setattr(reading_state.Held, "drawn", lambda *given: False)
        monkeypatch.setattr(reading_state.Held, "moved", lambda *given: False)
    made = study((given("nested"), Subset(Base(), range(8))), tmp_path, epochs=2)
    assert isinstance(made.data, hfta.Data) == caught
    list(made.run())
    monkeypatch.undo()
    begin()
    assert made.check(members=[0])["equal"].all() != caught


class Entropy(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + os.urandom(1)[0] / 256, Y[i]


class AtOnce(Base):
    """Augments a batch, as torch's loader reads it."""

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [(x + torch.randn(x.shape), y) for x, y in map(self.__getitem__, rows)]


def test_samples_are_read_at_once_where_a_data_set_does_that(tmp_path: Path) -> None:
    made = study((AtOnce(), Base()), tmp_path, lr=1e-300)
    made.fit(progress=False)
    losses = made.history.members[0].curves["train_loss"].values
    assert len(set(losses)) == len(losses) > 1


class Onward(Sampler[int]):
    """Goes on where the last pass has ended, which it notes at the end."""

    def __init__(self) -> None:
        self.start = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        yield from range(self.start, self.start + 8)
        self.start = (self.start + 8) % N


def test_a_sampler_may_go_on_at_the_end_of_a_pass(tmp_path: Path) -> None:
    whole = TensorDataset(X, Y)

    def made() -> hfta.Study:
        loaders = DataLoader(whole, 4, sampler=Onward()), DataLoader(whole, N)
        own = data.from_loader(*loaders, name="onward")
        return hfta.Study(Regressor, {"seed": [0, 1]}, own, epochs=4, loss=F.mse_loss, monitor="val_loss",
                          device="cpu", dtype="float64", lr=0.01, optimizer="adam", directory=tmp_path)  # fmt: skip

    made().fit(epochs=2, progress=False)
    again = made()
    again.fit(epochs=4, resume=True, progress=False)
    assert again.check()["equal"].all()
    torch.manual_seed(0)
    model, sampler, found = Regressor().double(), Onward(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        losses = []
        for x, y in DataLoader(whole, 4, sampler=sampler):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.double()), y.double())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(sum(losses) / len(losses))
    assert again.history.members[0].curves["train_loss"].values == pytest.approx(found, abs=1e-10)


def test_what_can_not_be_read_again_is_told(tmp_path: Path) -> None:
    made = study((Entropy(), Subset(Base(), range(8))), tmp_path / "run")
    assert isinstance(made.data, data.Stream)
    interrupted(made, 4)
    with pytest.raises(StudyError, match=r"not the same when it is read again: .*__getitem__, os.urandom"):
        made.check()
    with pytest.warns(DataWarning, match=r"os.urandom; so what is read now"):
        list(made.run(resume=True))
