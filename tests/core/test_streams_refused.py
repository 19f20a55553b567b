"""Streams that can't be: what is given, axes, passes without an end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.errors import DataError, DataWarning, GridError, StudyError
from tests.core.test_data_streams import HELD, STREAMS, Noisy, numbers, study, uneven


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: DataLoader(TensorDataset(*numbers()), 8), r"can't be split.*data=\(training, validation\)"),
        (lambda: uneven, "can't be split"),
        (lambda: (uneven(0), uneven(1)), "not a tensor"),
        (lambda: uneven(0), "give the function that makes the iterator"),
        (lambda: (lambda: iter(()), HELD), "training: gave no batch"),
        (lambda: (lambda: 3, HELD), "did not return batches"),
        (lambda: (lambda: [torch.zeros(3)], HELD), "not inputs and target"),
        (lambda: (lambda: [(torch.zeros(3, 2), torch.zeros(2))], HELD), "not as many inputs as targets"),
        (lambda: (lambda a, b: [], HELD), "takes more than the number of the pass"),
        (lambda: (uneven, (torch.zeros(4, 2, 2), torch.zeros(4).long())), "unlike inputs"),
        (lambda: (DataLoader(TensorDataset(*numbers()), 8), uneven(0)), "can be used only once"),
        (lambda: data.from_loader(3, HELD), "not a DataLoader"),  # type: ignore[arg-type]
        (lambda: data.from_batches(3, HELD), "not a function"),  # type: ignore[arg-type]
        (lambda: data.from_dataset([1, 2]), "not a Dataset"),
        (lambda: data.from_batches(uneven, HELD, num_classes="3"), "not a whole number"),  # type: ignore[arg-type]
        (lambda: data.from_batches(uneven, HELD, name="digits"), "name of another data set"),
        (lambda: (lambda: [(["a", "b"], torch.zeros(2))], HELD), "not a tensor, array or number"),
        (lambda: [{"text": "a", "label": 1}], "not data"),
    ],
)
def test_streams_that_can_not_be(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.resolve(given())


def test_samples_of_unlike_shape_are_named() -> None:
    class Ragged(Dataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> Any:
            return torch.zeros(i + 1), 0

    with pytest.raises(DataError, match=r"samples of unlike shape.*collate_fn"):
        data.resolve(Ragged())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": {"data_seed": [0, 1]}}, "data_seed: own data is a stream, whose batches all members share"),
        ({"grid": {"batch_size": [8, 16]}}, "batch_size: own data has batches of its own size"),
        ({"batch_size": 8}, "batch_size: own data has batches of its own size"),
    ],
)
def test_axes_that_a_stream_has_not(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    grid = options.pop("grid", {"lr": [1e-3, 1e-2]})
    with pytest.raises(GridError, match=words):
        hfta.Study("mlp", grid, STREAMS["loader"](), directory=tmp_path, **options)


def test_a_streamed_dataset_takes_batch_size(tmp_path: Path) -> None:
    made = hfta.Study("mlp", {"batch_size": [8, 16]}, Noisy(), directory=tmp_path / "run", epochs=1, width=4)
    list(made.run())
    assert [g.rows[0]["batch_size"] for g in made.plan_groups] == [8, 16]
    assert made.history.state == ev.COMPLETE


def test_a_function_that_runs_dry_is_told(tmp_path: Path) -> None:
    once = iter(list(uneven(0)) * 2)

    def dry() -> Any:
        return once

    made = study(data.from_batches(dry, HELD, num_classes=3, out_features=3), tmp_path / "run", epochs=5)
    with pytest.raises(DataError, match=r"gave no batch; a function must give fresh batches"):
        list(made.run())
    assert made.history.state == ev.FAILED


def endless_generator(epoch: int) -> Iterator[Any]:
    while True:
        x = torch.randn(8, 6)
        yield x, x.sum(1, keepdim=True)


class EndlessGenerator(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        while True:
            x = torch.randn(6)
            yield x, x.sum().view(1)


PAIR = (torch.zeros(8, 6), torch.zeros(8, 1))
SETS = TensorDataset(torch.zeros(8, 6), torch.zeros(8, 1))
ENDLESS: dict[str, Any] = {
    "generator": endless_generator,
    "cycle": lambda: itertools.cycle([PAIR]),
    "repeat": lambda: itertools.repeat(PAIR),
    "dataset": EndlessGenerator(),
    "loader": DataLoader(EndlessGenerator(), 8),
    "loader of endless batches": DataLoader(SETS, batch_sampler=itertools.cycle([[0, 1]])),
}
HELD_NUMBERS = (torch.zeros(8, 6), torch.zeros(8, 1))


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_endless_stream_needs_steps_per_epoch(kind: str, tmp_path: Path) -> None:
    given = (ENDLESS[kind], HELD_NUMBERS)
    with pytest.raises(StudyError, match=r"steps_per_epoch: own data never ends.*steps_per_epoch=500"):
        hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, given, directory=tmp_path / "run", width=4)
    made = hfta.Study("mlp", data=given, directory=tmp_path / "run", width=4, depth=1, steps_per_epoch=2, epochs=2)
    list(made.run())
    assert made.history.state == ev.COMPLETE


def test_a_validation_must_have_an_end() -> None:
    with pytest.raises(DataError, match="own data, validation: never ends"):
        data.from_batches(lambda: [PAIR], endless_generator)


def test_classes_of_an_endless_stream_are_not_looked_for() -> None:
    drawn = []

    def endless() -> Iterator[Any]:
        while True:
            drawn.append(1)
            yield numbers(8)

    with pytest.raises(DataError, match="num_classes can't be found: it never ends"):
        data.from_batches(endless, HELD)
    assert len(drawn) < 5


@pytest.mark.parametrize("last", [None, 8])
def test_a_long_pass_of_unknown_length_is_told(
    last: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfta_nb.train.group_run.LONG_PASS", 5)
    monkeypatch.setattr("hfta_nb.data.long_pass.LONG_PASS", 5)

    def counted(epoch: int) -> Iterator[Any]:
        for number in range(100):
            if number == last:
                return
            yield torch.zeros(8, 6), torch.zeros(8, 1)

    made = hfta.Study("mlp", data=(counted, HELD_NUMBERS), directory=tmp_path / "run", width=4, epochs=2)
    run, told = made.run(), "own data, pass 1: 5 batches, and more to come; if it has no end"
    with pytest.warns(DataWarning, match=told):
        list(run if last else itertools.takewhile(lambda event: told not in str(event), run))
    run.close()
    seen = [e for e, _ in made.store.events()]
    phases = [e.detail for e in seen if isinstance(e, ev.PhaseChanged) and e.phase == "training"]
    assert [bool(detail) for detail in phases] == ([False, True] if last is None else [False, True, False])
    assert made.history.state == (ev.STOPPED if last is None else ev.COMPLETE)


def test_a_long_validation_of_unknown_length_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.train.batches.LONG_PASS", 2)
    made = hfta.Study("mlp", data=(lambda: [PAIR], lambda: [PAIR] * 3), directory=tmp_path / "run", width=4, epochs=1)
    with pytest.warns(DataWarning, match="own data, validation: .* if it has no end, end it after some batches"):
        list(made.run())
    assert made.history.state == ev.COMPLETE


def test_what_has_a_way_out_is_not_called_endless() -> None:
    def ended(epoch: int) -> Iterator[Any]:
        number = 0
        while True:
            yield PAIR
            number += 1
            if number > 3:
                break

    for finite in (ended, lambda: itertools.repeat(PAIR, 2), lambda: itertools.islice(itertools.cycle([PAIR]), 3)):
        assert not data.from_batches(finite, HELD_NUMBERS).endless
