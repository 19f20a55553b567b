"""Studies whose members share a frozen base: memory, checkpoints and resumed runs have it once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array.access import is_held_once
from hfta_nb.records.events import Control
from hfta_nb.records.store import tensor_files
from hfta_nb.train import Trainer
from hfta_nb.train.capacity import model_of
from hfta_nb.train.step.ema import WeightAverages

torch.manual_seed(0)
BASE = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Linear(256, 256)).requires_grad_(False)
SIZE = sum(p.nbytes for p in BASE.parameters())


@hfta.family
def probe(dropout: float = 0.1) -> nn.Module:
    """A head on a frozen base, of which each member has a copy."""
    return nn.Sequential(copy.deepcopy(BASE), nn.Dropout(dropout), nn.Linear(256, 3))


GRID = {"lr": [1e-3, 1e-2], "seed": [0, 1]}


def make(place: Path, **more: Any) -> hfta.Study:
    return hfta.Study(probe, GRID, "iris", directory=place, **{"epochs": 4, "device": "cpu", **more})


def test_a_resumed_study_is_one_in_one_go(tmp_path: Path) -> None:
    whole, parts = make(tmp_path / "whole"), make(tmp_path / "parts", epochs=2)
    list(whole.run())
    list(parts.run())
    files = [path for path in tmp_path.glob("parts/**/*.safetensors") if path.parent.name != "weights"]
    assert files
    assert all(SIZE < path.stat().st_size < 1.5 * SIZE for path in files)
    again = hfta.Study.load(parts.directory, family=probe)
    list(again.run(epochs=4))
    for i in range(4):
        expected = whole.store.read_weights(i)
        for name, value in again.store.read_weights(i).items():
            torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)
    assert bool(again.check(members=[0])["equal"].all())


def test_the_plan_counts_the_base_once(tmp_path: Path) -> None:
    study = make(tmp_path)
    model = model_of(Trainer(study.settings(), study.plan_groups, Control()), study.plan_groups[0])
    assert model.member_bytes < SIZE


def test_an_estimate_counts_the_base_once(tmp_path: Path) -> None:
    (group,) = make(tmp_path).plan_groups
    assert not group.measured
    assert group.fixed_bytes == SIZE
    assert group.memory_bytes < SIZE / 10


def test_a_file_has_equal_rows_once(tmp_path: Path) -> None:
    row = torch.arange(2000.0)
    tensors = {"once": row.expand(5, 2000), "one": row.view(1, -1), "each": row.repeat(2, 1), "number": row[3]}
    entry = tensor_files.write(tmp_path, "tensors", tensors)
    assert entry.size_bytes < 4 * row.nbytes + 2000
    found = tensor_files.read(tmp_path, entry)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in found.items())


@pytest.mark.parametrize("late", [False, True])
def test_averages_follow_what_is_trained_later(late: bool) -> None:
    array = hfta.fuse([copy.deepcopy(BASE) for _ in range(2)])
    if not late:
        array.requires_grad_(True).take_over()
    averages = WeightAverages(array, [0.5, 0.75])
    averages.update()
    array.requires_grad_(True).take_over()
    assert not any(is_held_once(p) for p in array.parameters())
    with torch.no_grad():
        for p in array.parameters():
            p.add_(1)
    averages.update()
    found: dict[str, Tensor] = dict(averages.by_name())
    for name, p in BASE.named_parameters():
        torch.testing.assert_close(found[name], torch.stack([p + 0.5, p + 0.25]))
