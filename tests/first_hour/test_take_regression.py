"""A study of numbers or of two classes: targets of any shape, tables, losses and metrics by name, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hfta_nb as hfta
from hfta_nb import losses
from hfta_nb.errors import BroadcastError, DataError, FamilyError, MemberError
from hfta_nb.models import metrics
from hfta_nb.models.targets import shaped_as

pytestmark = pytest.mark.filterwarnings("error:Using a target size")  # torch's, before it broadcasts [N] against [N, 1]

x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
y = x.sum(1)
TRAINING, VALIDATION = (x[:48], y[:48]), (x[48:], y[48:])


class Flat(nn.Module):
    """Returns ``[N]``."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class Column(Flat):
    """Returns ``[N, 1]``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Named(Flat):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden_state": x, "prediction": super().forward(x)}


class Items(Dataset[Any]):
    """Samples that are dicts."""

    def __init__(self, first: int, last: int) -> None:
        self.at = range(first, last)

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": x[self.at[i]], "y": y[self.at[i]]}


FORMS = {
    "tensors": (*TRAINING, *VALIDATION),
    "columns": (TRAINING[0], TRAINING[1].unsqueeze(1), VALIDATION[0], VALIDATION[1].unsqueeze(1)),
    "datasets": (TensorDataset(*TRAINING), TensorDataset(*VALIDATION)),
    "dicts": (Items(0, 48), Items(48, 60)),
    "loaders": (DataLoader(TensorDataset(*TRAINING), batch_size=12), DataLoader(TensorDataset(*VALIDATION), 12)),
}


def trained(family: Any, data: Any, place: Path, **options: Any) -> hfta.Study:
    settings = {"epochs": 2, "device": "cpu", "dtype": "float64", **options}
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, data, directory=place, **settings)
    study.fit(progress=False)
    return study


def predicted(study: hfta.Study) -> Tensor:
    """What the best member's plain module predicts for the validation samples, ``[N]``."""
    out = study.best().module()(VALIDATION[0])
    return (out["prediction"] if isinstance(out, dict) else out).reshape(-1)


@pytest.mark.each("form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", [Flat, Column, Named])
def test_the_loss_is_that_of_each_samples_own_target(family: Any, form: str, tmp_path: Path) -> None:
    study = trained(family, FORMS[form], tmp_path)
    best = study.results().iloc[0]
    assert best["val_loss"] == pytest.approx(F.mse_loss(predicted(study), VALIDATION[1]).item())
    assert best["val_mae"] == pytest.approx(F.l1_loss(predicted(study), VALIDATION[1]).item())
    assert study.check(members=[0])["equal"].all()


def absolute(out: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own, for outputs and targets of one shape."""
    return (out - target).abs().mean()


@pytest.mark.each("loss", every=2)
@pytest.mark.parametrize(
    ("family", "loss"),
    [(Flat, F.l1_loss), (Flat, absolute)]
    + [(family, name) for family in (Flat, Column, "mlp") for name in ("l1", "mae", "l1_loss")],
)
def test_losses_of_ones_own_and_by_name(family: Any, loss: Any, tmp_path: Path) -> None:
    rmse = {"rmse": lambda a, b: F.mse_loss(a.reshape(-1), b) ** 0.5}
    study = trained(family, FORMS["tensors"], tmp_path, loss=loss, metrics=rmse)
    best = study.results().iloc[0]
    assert best["val_loss"] == pytest.approx(F.l1_loss(predicted(study), VALIDATION[1]).item())
    assert best["val_rmse"] == pytest.approx(F.mse_loss(predicted(study), VALIDATION[1]).item() ** 0.5)


@pytest.mark.parametrize("given", [{"loss": F.l1_loss}, {"loss": absolute}, {"metrics": {"absolute": absolute}}])
def test_functions_of_ones_own_get_targets_as_they_are(given: dict[str, Any], tmp_path: Path) -> None:
    message = r"(l1_loss|sub) broadcasts \[48, 1\] and \[48\] to \[48, 48\]"
    with pytest.raises(BroadcastError, match=message):
        trained(Column, FORMS["tensors"], tmp_path, batch_size=48, **given)


def test_a_named_loss_takes_the_prediction_of_several_outputs(tmp_path: Path) -> None:
    study = trained(Named, FORMS["tensors"], tmp_path, loss="huber")
    expected = F.huber_loss(predicted(study), VALIDATION[1]).item()
    assert study.results().iloc[0]["val_loss"] == pytest.approx(expected)


def test_whole_numbers_may_be_targets_of_regression(tmp_path: Path) -> None:
    data = hfta.data.from_tensors(x[:48], y[:48].round().long(), x[48:], y[48:].round().long(), task="regression")
    study = trained(Column, data, tmp_path)
    expected = F.mse_loss(predicted(study), VALIDATION[1].round()).item()
    assert study.results().iloc[0]["val_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.each("metrics", every=2)
@pytest.mark.parametrize(
    "metrics",
    [{"mse": F.mse_loss}, {"how_far": F.mse_loss}, [F.mse_loss], {"max_error": lambda a, b: (a - b).abs().max()}],
)
def test_less_of_an_error_is_better(metrics: Any, tmp_path: Path) -> None:
    name = next(iter(metrics)) if isinstance(metrics, dict) else "mse_loss"
    study = trained(Flat, FORMS["tensors"], tmp_path, metrics=metrics, monitor=f"val_{name}")
    values = study.results()[f"val_{name}"]
    assert values.iloc[0] == values.min() < values.max()


def test_more_of_a_metric_is_better_where_it_says_so(tmp_path: Path) -> None:
    metrics = {"fit": hfta.Metric(lambda out, target: -F.mse_loss(out, target), maximize="max")}
    values = trained(Flat, FORMS["tensors"], tmp_path, metrics=metrics, monitor="val_fit").results()["val_fit"]
    assert values.iloc[0] == values.max() > values.min()


def test_metrics_by_name(tmp_path: Path) -> None:
    labels = (x.sum(1) > 0).long()
    study = hfta.Study("mlp", {"lr": [1e-2]}, (x, labels), metrics=["accuracy", "top5"], directory=tmp_path)
    assert set(study.family.metrics or ()) == {"accuracy", "top5"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "msee"}, "loss: not a loss; got 'msee'; accepted: a callable of .*; did you mean mse"),
        ({"loss": nn.MSELoss}, "make one: MSELoss"),
        ({"metrics": ["acuracy"]}, "not a metric; got 'acuracy'; .*did you mean accuracy"),
    ],
)
def test_names_that_are_none(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=message):
        hfta.Study(Flat, {"lr": [1e-2]}, (x, y), directory=tmp_path, **given)


def test_torchmetrics_get_targets_as_they_are(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metrics = {"mse": torchmetrics.MeanSquaredError()}
    study = trained(Column, FORMS["columns"], tmp_path / "columns", metrics=metrics)
    expected = F.mse_loss(predicted(study), VALIDATION[1]).item()
    assert study.results().iloc[0]["val_mse"] == pytest.approx(expected)
    with pytest.raises(MemberError, match=r"metric mse: .* expected to have the same shape"):
        trained(Column, FORMS["tensors"], tmp_path / "tensors", metrics=metrics)


def test_targets_keep_their_precision() -> None:
    output, target = torch.zeros(5, 1, dtype=torch.bfloat16), torch.full((5,), 1.0009765625)
    for loss in (losses.for_task("regression"), losses.NamedLoss("mse")):
        with torch.autocast("cpu", torch.bfloat16):
            assert loss(output, target).item() == pytest.approx(1.0009765625**2)
    assert metrics.mae(output.float(), target).item() == pytest.approx(1.0009765625)


LABELS = (x.sum(1) > 0).long()


@pytest.mark.each("labels")
@pytest.mark.parametrize("family", [Flat, Column])
@pytest.mark.parametrize("labels", [LABELS, LABELS.bool(), LABELS.unsqueeze(1)], ids=["whole", "truth", "column"])
def test_one_logit_of_two_classes(family: Any, labels: Tensor, tmp_path: Path) -> None:
    study = trained(family, (x[:48], labels[:48], x[48:], labels[48:]), tmp_path, loss="bce", monitor="val_loss")
    logits, truth = predicted(study), LABELS[48:]
    best = study.results().iloc[0]
    expected = F.binary_cross_entropy_with_logits(logits, truth.double()).item()
    assert best["val_loss"] == pytest.approx(expected)
    assert best["val_accuracy"] == pytest.approx(((logits > 0) == truth).double().mean().item())


def test_class_numbers_in_a_column(tmp_path: Path) -> None:
    studies = [
        trained("mlp", (x[:48], labels[:48], x[48:], labels[48:]), tmp_path / str(labels.ndim), seed=0)
        for labels in (LABELS, LABELS.unsqueeze(1))
    ]
    values = [s.results()[["val_loss", "val_accuracy"]].to_numpy() for s in studies]
    assert (values[0] == values[1]).all()


def test_tables_are_data(tmp_path: Path) -> None:
    table = pd.DataFrame(x.numpy(), columns=list("abcd")).assign(label=LABELS.numpy(), y=y.numpy())
    study = hfta.Study("mlp", {"lr": [1e-2]}, (table[list("abcd")], table["label"]), directory=tmp_path / "classes")
    assert study.data.task == "classification"
    assert torch.equal(torch.cat([study.data.y, study.data.y_validation]).sort().values, LABELS.sort().values)
    table.loc[0, "a"] = 1e9  # the study has a copy
    assert study.data.x.abs().max() < 1e3
    study = hfta.Study("mlp", {"lr": [1e-2]}, (table[list("abcd")], table[["y"]]), directory=tmp_path / "numbers")
    assert study.data.task == "regression"


def test_columns_of_words_are_refused(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "colour": ["red", "blue"]})
    with pytest.raises(
        DataError, match=r"x: columns that are not numbers; got .*colour.*; encode them, for example by"
    ):
        hfta.Study("mlp", {"lr": [1e-2]}, (table, table["a"]), directory=tmp_path)


@pytest.mark.parametrize(
    ("target", "output", "shape"),
    [
        (torch.zeros(5), torch.zeros(5, 1), (5, 1)),
        (torch.zeros(5, 1), torch.zeros(5), (5,)),
        (torch.zeros(5, 3), torch.zeros(5, 3, 1), (5, 3, 1)),
        (torch.zeros(5), torch.zeros(5, 2), (5,)),
        (torch.zeros(5, 2), torch.zeros(5, 2), (5, 2)),
        (torch.zeros(1, 1), torch.zeros(1), (1,)),
        (torch.zeros(5, dtype=torch.long), torch.zeros(5, 1), (5,)),
        (torch.zeros(5, 1, dtype=torch.long), torch.zeros(5, 3), (5,)),
        (torch.zeros(5, 1, dtype=torch.long), torch.zeros(5, 1), (5, 1)),
    ],
)
def test_shapes(target: Tensor, output: Tensor, shape: tuple[int, ...]) -> None:
    assert shaped_as(target, output).shape == shape
    assert shaped_as((target,), output) == (target,)
