"""Whole numbers as targets mean what the loss makes of them, where that is known; else the loss decides."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hfta_nb as hfta
from hfta_nb.errors import DataError
from tests.contract.handed_over import numbers

X, CLASSES = numbers(40, 4), torch.arange(40) % 3
COUNTS = torch.tensor([0, 7, 1000, -3])[torch.arange(40) % 4]


def build(outputs: int = 1) -> nn.Module:
    return nn.Linear(4, outputs)


def given(place: Path, y: Tensor, outputs: int = 1, streamed: bool = False, **options: Any) -> hfta.Study:
    data: Any = (TensorDataset(X, y), TensorDataset(X, y)) if streamed else (X, y, X, y)
    return hfta.Study(build, {"outputs": [outputs], "seed": [0, 1]}, data, epochs=4, device="cpu", dtype="float64",
                      directory=place, **options)  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("loss", ["mse", "l1", nn.MSELoss(), F.l1_loss, partial(F.smooth_l1_loss, beta=0.5)])
def test_a_loss_of_numbers_makes_a_regression(loss: Any, streamed: bool, tmp_path: Path) -> None:
    y = COUNTS.unsqueeze(1)
    made = given(tmp_path, y, loss=loss, streamed=streamed)
    assert (made.monitor, made.metrics[2:]) == ("val_loss", ("train_mae", "val_mae"))
    made.fit(progress=False)
    best = made.best()
    output = best.module()(X).detach()
    function: Any = getattr(F, f"{loss}_loss") if isinstance(loss, str) else loss
    assert best.metrics["val_loss"] == pytest.approx(function(output, y.double()).item(), rel=1e-10)
    assert made.check([0])["equal"].all()
    again = hfta.Study.load(tmp_path, family=made.family, data=(TensorDataset(X, y),) * 2 if streamed else None)
    assert again.data.task == "regression"


def own(output: Tensor, y: Tensor) -> Tensor:
    return F.poisson_nll_loss(output.squeeze(-1), y.double())


def hinge(output: Tensor, y: Tensor) -> Tensor:
    return (1 - output.squeeze(-1) * (2 * y - 1)).clamp(min=0).mean()


def tasks(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :3], y[:, 0]) + F.cross_entropy(output[:, 3:], y[:, 1])


@pytest.mark.parametrize(
    ("loss", "y", "outputs"),
    [(own, CLASSES, 1), (hinge, CLASSES % 2, 1), (tasks, torch.stack([CLASSES, CLASSES % 2], 1), 5)],
)
def test_a_loss_of_one_s_own_decides_what_is_best(loss: Any, y: Tensor, outputs: int, tmp_path: Path) -> None:
    """Accuracy can't say it: nobody knows whether outputs are logits of these numbers."""
    made = given(tmp_path, y, outputs, loss=loss)
    assert made.monitor == "val_loss"
    made.fit(progress=False)
    best = made.best()
    assert best.metrics["val_loss"] == pytest.approx(loss(best.module()(X), y).item(), rel=1e-10)
    assert best.metrics["val_loss"] == min(min(m.curves["val_loss"].values) for m in made.history.members.values())


@pytest.mark.parametrize(
    "loss",
    ["cross_entropy", nn.CrossEntropyLoss(), F.cross_entropy, hfta.losses.cross_entropy(label_smoothing=0.1), None],
)
def test_a_loss_of_classes_is_judged_by_accuracy(loss: Any, tmp_path: Path) -> None:
    assert given(tmp_path, CLASSES, 3, loss=loss).monitor == "val_accuracy"


def test_data_and_metrics_that_are_declared_count(tmp_path: Path) -> None:
    """Data sets by name are of classes; metrics that are given are meant."""
    digits = hfta.Study("mlp", {"lr": [0.1]}, "digits", epochs=1, loss=lambda o, y: F.cross_entropy(o, y), device="cpu")
    assert digits.monitor == "val_accuracy"
    assert given(tmp_path, CLASSES, 3, loss=tasks, metrics=["accuracy"]).monitor == "val_accuracy"


@pytest.mark.parametrize("y", [COUNTS, COUNTS.abs()])
def test_numbers_that_can_t_be_classes_say_what_to_do(y: Tensor, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no classes are floats: y\.float\(\)$"):
        given(tmp_path, y, loss=own)
