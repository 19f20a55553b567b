"""The last mini-batch of a pass: batch norm can't train on a single sample, so it can be left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.data.preprocessed import PreprocessedSource
from hfta_nb.data.served import ServedSource
from hfta_nb.data.sources import DatasetSource
from hfta_nb.errors import DataError, MemberError, StudyError

SAMPLES, BATCH = 65, 32
GRID = {"lr": [1e-2, 1e-3]}


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Endless(IterableDataset[Any]):
    """The samples one after another."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*DATA[:2], strict=True))


def _data() -> tuple[Tensor, ...]:
    x = torch.randn(SAMPLES + 16, 4, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    return x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:]


DATA = _data()
DATASETS = TensorDataset(*DATA[:2]), TensorDataset(*DATA[2:])


def study(where: Path, data: Any = DATA, **more: Any) -> hfta.Study:
    options = {"epochs": 3, "batch_size": BATCH, "drop_last": True, "dtype": "float64", "directory": where, **more}
    return hfta.Study(Net, GRID, data, **options)


def curves(study: hfta.Study) -> dict[int, dict[str, list[float]]]:
    return {i: {name: c.values for name, c in m.curves.items()} for i, m in study.history.members.items()}


def test_without_it_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match=r"got input size .* leave out a last mini-batch of one sample \(drop_last"):
        study(tmp_path, drop_last=False).fit(progress=False)


def test_fused_equals_serial(tmp_path: Path) -> None:
    found = [study(tmp_path / str(serial), serial=serial) for serial in (False, True)]
    for one in found:
        one.fit(progress=False)
        assert one.data.batches(BATCH) == 2
        assert all(m.state == "COMPLETE" for m in one.history.members.values())
    fused, alone = map(curves, found)
    for i, name in itertools.product(fused, fused[0]):
        assert fused[i][name] == pytest.approx(alone[i][name], abs=1e-9)


def test_a_dataset_has_the_batches_of_tensors(tmp_path: Path) -> None:
    found = [study(tmp_path / str(i), data) for i, data in enumerate([DATA, DATASETS])]
    for one in found:
        one.fit(progress=False)
    assert curves(found[0]) == curves(found[1])


def test_an_iterable_dataset_too(tmp_path: Path) -> None:
    data = hfta.data.from_dataset(Endless(), DATASETS[1])
    batches = [len(y) for _, y in data.dropping_last().training.batches(BATCH, 0, 0)]
    assert batches == [BATCH, BATCH]
    assert [len(y) for _, y in data.training.batches(BATCH, 0, 0)] == [BATCH, BATCH, 1]
    found = study(tmp_path, data)
    found.fit(progress=False)
    assert all(m.state == "COMPLETE" for m in found.history.members.values())


@pytest.mark.parametrize("data", ["tensors", "dataset"])
def test_a_run_goes_on_where_it_was_left(data: str, tmp_path: Path) -> None:
    given = DATA if data == "tensors" else DATASETS
    whole, left = study(tmp_path / "whole", given), study(tmp_path / "left", given)
    whole.fit(progress=False)
    for event in left.run():
        if isinstance(event, ev.EpochDone):
            break
    again = hfta.Study.load(left.directory, family=left.family, **({} if data == "tensors" else {"data": given}))
    assert again.drop_last
    assert again.data.batches(BATCH) == 2
    list(again.run(resume=True))
    assert curves(again) == curves(whole)


def test_sources_that_other_processes_read() -> None:
    source = DatasetSource(DATASETS[0], shuffle=True)
    for given, batches in ((source, 3), (source.dropping_last(), 2)):
        client: Any = None  # is not asked
        assert ServedSource(given, "training", client).length(BATCH) == batches
        assert PreprocessedSource(given, "training", client).length(BATCH) == batches


def test_it_is_part_of_the_code(tmp_path: Path) -> None:
    made = hfta.Study("mlp", GRID, "digits", epochs=1, drop_last=True, directory=tmp_path)
    assert "drop_last=True" in made.to_code()
    assert "drop_last" not in hfta.Study("mlp", GRID, "digits", epochs=1).to_code()


def test_data_that_makes_its_own_batches(tmp_path: Path) -> None:
    loader = DataLoader(DATASETS[0], batch_size=BATCH)
    for data in ((loader, DATASETS[1]), hfta.data.from_batches(lambda: itertools.islice(loader, 2), DATASETS[1])):
        with pytest.raises(DataError, match=r"makes its own mini-batches.*drop_last=True"):
            study(tmp_path, data)


def test_a_pass_without_a_full_batch(tmp_path: Path) -> None:
    for data in (DATA, DATASETS):
        with pytest.raises(DataError, match=f"no mini-batch is full; got '{SAMPLES} training samples, batch_size 100'"):
            study(tmp_path, data, batch_size=100)
    with pytest.raises(StudyError, match="drop_last"):
        study(tmp_path, drop_last="yes")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--family", "mlp", "--data", "digits", "--grid", "lr=1e-2", "--epochs", "1", "--batch-size", "1000"]
    assert main([*words, "--drop-last", "--output", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert hfta.Study.load(tmp_path / "run").drop_last
    assert main([*words[:-1], "5000", "--drop-last", "--output", str(tmp_path / "other"), "--device", "cpu"]) == 2
    assert "no mini-batch is full" in capsys.readouterr().err
