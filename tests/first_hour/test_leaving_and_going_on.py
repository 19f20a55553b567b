"""Leaving a study, coming back and extending it: nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StudyError


def test_break_look_at_the_best_and_carry_on(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=5, directory=tmp_path / "run")
    for event in study.run():
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            break

    model = study.best().module()
    assert model(study.data.x_validation).shape[1] == 3
    assert set(study.results()["state"]) == {"STOPPED"}

    with pytest.raises(StudyError, match=r"run\(resume=True\)"):
        study.fit()
    study.fit(resume=True)
    assert set(study.results()["epochs"]) == {5}


def test_ten_more_epochs(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=2, directory=tmp_path / "run")
    study.fit()
    table = study.fit(epochs=4)
    assert set(table["epochs"]) == {4}

    # Tomorrow, in another notebook:
    study = hfta.Study.load(tmp_path / "run")
    for event in study.run(epochs=5):
        if isinstance(event, ev.EpochDone):
            assert event.epoch == 5
    assert study.check([0])["equal"].all()


@dataclass
class Config:
    lr: float = 1e-3
    width: int = 8


def test_my_own_list_of_configurations(tmp_path: Path) -> None:
    grid = [Config(1e-3, 8), Config(1e-2, 16), {"lr": 3e-2, "width": 4}]
    study = hfta.Study("mlp", grid, "iris", epochs=2, directory=tmp_path / "run")
    table = study.fit()
    assert sorted(zip(table["lr"], table["width"], strict=True)) == [(1e-3, 8), (1e-2, 16), (3e-2, 4)]

    assert study.add(Config(0.1, 32)) == [3]
    table = study.fit()
    assert set(table["state"]) == {"COMPLETE"}
    assert study.member(3).config == {"lr": 0.1, "width": 32}


def test_one_of_my_models_has_a_bug(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, width: int, in_features: int, out_features: int) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(in_features, width), nn.Linear(width, out_features)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.first.out_features == 7 and not x.is_meta:
                raise RuntimeError("heads don't divide 7")
            return self.second(self.first(x).relu())

    @hfta.family
    def buggy(width: int = 8, in_features: int = 1, out_features: int = 1) -> nn.Module:
        return Net(width, in_features, out_features)

    study = hfta.Study(buggy, {"width": [7, 8], "lr": [1e-3, 1e-2]}, "iris", epochs=2, directory=tmp_path / "run")
    table = study.fit().sort_index()
    assert list(table["state"]) == ["FAILED", "FAILED", "COMPLETE", "COMPLETE"]
    assert table["reason"][0] == "RuntimeError: heads don't divide 7"
    assert study.best().config["width"] == 8


def test_watch_it_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    losses = []

    def watch(event: ev.Event) -> None:
        if isinstance(event, ev.EpochDone):
            losses.append(min(event.metrics["val_loss"]))

    board = hfta.callbacks.TensorBoard(tmp_path / "board")
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=3, directory=tmp_path / "run")
    study.fit(on_event=[board, watch])
    assert len(losses) == 3
    assert len(list((tmp_path / "board").glob("*/*/events.out.tfevents.*"))) == 2
