"""Typical mistakes, also in user code: the message names their origin, and nothing else is affected."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hfta_nb as hfta
from hfta_nb.errors import DataError, GridError, StudyError
from hfta_nb.train.plan import reckoned
from tests.call_log import CallLog

x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)


def net(hidden: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 3))


# Arguments of other types.


@pytest.mark.parametrize("seed", ["0", 1.5, -1, True, None, [0, 1]], ids=str)
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(StudyError, match=r"seed: not a seed.*make seed an axis of the grid"):
        hfta.Study(net, data=(x, y), seed=seed)


def test_a_seed_may_be_numpy_s() -> None:
    assert hfta.Study(net, data=(x, y), seed=np.int64(3)).seed == 3


@pytest.mark.parametrize("serial", ["yes", 1, None], ids=str)
def test_serial_is_true_or_false(serial: Any) -> None:
    with pytest.raises(StudyError, match="serial: not True or False"):
        hfta.Study(net, data=(x, y), serial=serial)


@pytest.mark.parametrize("grid", ["lr", 3, dict, [1, 2]], ids=str)
def test_a_grid_is_a_mapping(grid: Any) -> None:
    with pytest.raises(GridError, match="grid: "):
        hfta.Study(net, grid, data=(x, y))


# Labels.


def _stray(value: int) -> Tensor:
    labels = y.clone()
    labels[7] = value
    return labels


def test_one_stray_label_makes_no_head_of_a_hundred_thousand_classes() -> None:
    with pytest.raises(DataError, match=r"4 classes occur.*model of 100,000; got 'the label 99,999, 1 times'"):
        hfta.data.from_tensors(x, _stray(99999))
    with pytest.raises(DataError, match="num_classes=256"):
        hfta.data.from_tensors(x, y, x, _stray(255))
    assert hfta.data.from_tensors(x, _stray(99999), num_classes=100_000).facts["num_classes"] == 100_000


def test_labels_are_checked_against_num_classes() -> None:
    with pytest.raises(DataError, match=r"1 of \d+ labels are none of the 3 classes; got \[5\]; accepted: 0 to 2"):
        hfta.data.from_tensors(x, y, x, _stray(5), num_classes=3)
    assert hfta.data.from_tensors(x, y, num_classes=7).facts["num_classes"] == 7

    class Listed(list):
        classes = ("a", "b", "c")

    pairs = Listed(zip(x, _stray(5).tolist(), strict=True))
    with pytest.raises(DataError, match="none of the 3 classes"):
        hfta.data.from_dataset(_Dataset(pairs))


class _Dataset:
    def __init__(self, pairs: Any) -> None:
        self.pairs, self.classes = pairs, pairs.classes

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


def test_minus_100_is_torch_s_ignore_index_and_other_negative_labels_are_mistakes(tmp_path: Path) -> None:
    data = hfta.data.from_tensors(x, _stray(-100))
    assert data.facts["num_classes"] == 3
    study = hfta.Study(net, {"lr": [0.1]}, data=data, epochs=1, directory=tmp_path)
    list(study.run())
    assert study.results()["val_loss"].notna().all()
    held = hfta.data.from_tensors(x, y, x, torch.where(torch.arange(60) < 30, y, -100), num_classes=3)
    study = hfta.Study(net, {"lr": [0.1]}, data=held, epochs=1, directory=tmp_path / "held")
    list(study.run())
    right = study.best().module()(x[:30]).argmax(1) == y[:30]
    assert study.best().metrics["val_accuracy"] == pytest.approx(float(right.double().mean()))  # of those that count
    with pytest.raises(DataError, match="a negative label; got -1; accepted: class numbers from 0, or -100"):
        hfta.data.from_tensors(x, _stray(-1))
    with pytest.raises(DataError, match="has no labels"):
        hfta.data.from_tensors(x, torch.full((60,), -100))


@pytest.mark.parametrize("mark", [-1, 255])
def test_labels_that_the_loss_ignores_do_not_count(mark: int, tmp_path: Path) -> None:
    marked = torch.where(torch.arange(60) % 4 == 0, mark, y)
    losses = (nn.CrossEntropyLoss(ignore_index=mark), partial(nn.functional.cross_entropy, ignore_index=mark))
    for number, loss in enumerate(losses):
        data = (x, marked, x, marked) if number else _sets(x, marked)
        study = hfta.Study(net, {"lr": [0.1]}, data, epochs=1, loss=loss, directory=tmp_path / str(number))
        study.fit(progress=False)
        assert study.data.facts["num_classes"] == 3
        best = study.best()
        right = best.module()(x).argmax(1) == y
        assert best.metrics["val_accuracy"] == pytest.approx(float(right[marked != mark].double().mean()))


def _sets(x: Tensor, y: Tensor) -> Any:
    return TensorDataset(x, y), TensorDataset(x, y)


def test_labels_of_a_function_s_batches() -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield x, y
        yield x, _stray(99999)

    with pytest.raises(DataError, match="model of 100,000"):
        hfta.data.from_batches(batches, batches)


# A person's own code in this process.


class Loud(nn.Module):
    """Counts its calls in this process."""

    calls = CallLog()

    def __init__(self, hidden: int = 6, lazy: bool = False) -> None:
        super().__init__()
        self.first = nn.LazyLinear(hidden) if lazy else nn.Linear(4, hidden)
        self.last = nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        Loud.calls.note()
        return self.last(self.first(x))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_study_that_is_made_runs_no_forward(lazy: bool, tmp_path: Path) -> None:
    Loud.calls.clear()
    study = hfta.Study(Loud, {"hidden": [4, 6], "lr": [0.1, 0.2]}, data=(x, y), lazy=lazy, directory=tmp_path, epochs=1)
    study.groups(), study.plan(measure=False), repr(study), study.to_code()
    assert len(Loud.calls) == 0
    group = study.plan_groups[0]
    assert reckoned(group, study.family, study.data).memory_bytes > group.memory_bytes  # where it trains: activations
    assert len(Loud.calls) > 0
    list(study.run())
    assert len(study.results()) == 4
    assert study.check()["equal"].all()


def messy(hidden: int = 6) -> nn.Module:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)

    class Messy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(hidden).float()

        def forward(self, x: Tensor) -> Tensor:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(torch.get_num_threads() + 1)
            return self.inner(x)

    return Messy()


@contextmanager
def _as_they_were(others: bool = True) -> Iterator[None]:
    """Settings and torch's random stream; with `others`, NumPy's and Python's as well."""

    def now() -> tuple[Any, ...]:
        settings = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist()
        return (*settings, np.random.get_state()[1].tolist(), random.getstate()) if others else settings

    before = now()
    yield
    assert now() == before


def test_the_process_is_as_it_was_after_a_person_s_code(tmp_path: Path) -> None:
    with _as_they_were():
        study = hfta.Study(messy, {"lr": [0.1, 0.2], "hidden": [4, 6]}, data=(x, y), epochs=1, directory=tmp_path)
    events = study.run()
    with _as_they_were(others=False):
        for _ in events:
            assert torch.get_default_dtype() == torch.float32  # between two events too
    with _as_they_were():
        study.best().module()
    with _as_they_were(others=False):
        study.check()


def test_who_iterates_draws_from_their_own_streams(tmp_path: Path) -> None:
    study = hfta.Study(messy, {"lr": [0.1]}, data=(x, y), epochs=1, directory=tmp_path)
    torch.manual_seed(5)
    expected = [torch.rand(()).item() for _ in range(3)]
    torch.manual_seed(5)
    drawn = [torch.rand(()).item() for _ in study.run()]
    assert drawn[:3] == expected


# Large grids.


def test_ten_thousand_variants_are_compared_once_for_each_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is asserted: the work that grew with the variants is counted instead."""
    from hfta_nb.train.plan import grouping

    counts = {"difference": 0, "blueprint": 0, "build": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*args, **named)

        return call

    for name in ("difference", "blueprint"):
        monkeypatch.setattr(grouping, name, counted(name, getattr(grouping, name)))

    def counted_net(hidden: int = 6) -> nn.Module:
        counts["build"] += 1
        return net(hidden)

    grid = {"lr": [1e-4 * (i + 1) for i in range(500)], "hidden": [4, 5], "weight_decay": [i / 10 for i in range(10)]}
    study = hfta.Study(counted_net, grid, data=(x, y))
    assert sum(len(g.variants) for g in study.plan_groups) == 10_000
    assert counts["build"] <= 4
    assert counts["difference"] + counts["blueprint"] <= 8
