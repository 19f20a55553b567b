"""The training axis `max_norm`: members with clipped gradients equal training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb.errors import GridError


def _run(directory: Path, grid: dict[str, Any], family: str = "mlp", data: str = "digits", **options: Any) -> Any:
    study = hfta.Study(family, grid, data=data, epochs=2, directory=directory, **options)
    list(study.run())
    return study


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_members_are_what_they_would_be_alone(optimizer: str, tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2], "max_norm": [0.01, 0.1, None]}
    study = _run(tmp_path, grid, dtype="float64", optimizer=optimizer, steps_per_epoch=8)
    assert len(study.plan()) == 1
    assert study.check()["equal"].all()
    losses = study.results().sort_values("lr")["val_loss"]
    assert losses.nunique() == 6


def test_without_it_nothing_is_clipped(tmp_path: Path) -> None:
    curves = []
    for name, grid in {"none": {"lr": [0.1, 0.2]}, "far": {"lr": [0.1, 0.2], "max_norm": [1e9]}}.items():
        study = _run(tmp_path / name, grid, dtype="float64", optimizer="sgd", steps_per_epoch=8)
        curves.append(study.results()["val_loss"].tolist())
    assert curves[0] == pytest.approx(curves[1], rel=1e-12)


def test_each_phase_clips_its_own(tmp_path: Path) -> None:
    study = _run(
        tmp_path,
        {"max_norm": [0.05, 2.0]},
        "dcgan",
        "digit_images",
        steps_per_epoch=2,
        generator_width=4,
        discriminator_width=4,
    )
    assert study.check(epochs=1)["equal"].all()


@pytest.mark.parametrize("wrong", [-1.0, "much"])
def test_wrong_values_are_told(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(GridError, match="max_norm"):
        hfta.Study("mlp", {"max_norm": [wrong]}, data="digits", directory=tmp_path)
