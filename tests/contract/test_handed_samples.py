"""Samples of several parts and kinds, from each form of data: what a loss and a model get of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hfta_nb as hfta
from hfta_nb.errors import DataError, FamilyError
from tests.contract.handed_over import numbers

N = 16
X, Y, WEIGHTS, KINDS = numbers(N, 4), numbers(N, seed=1), numbers(N, 1, seed=2).abs(), torch.arange(N) % 3


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.nan_to_num())
        return found


class Scaled(Heads):
    """May take a second input."""

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(x) if scale is None else super().forward(x) * scale


class Two(Heads):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x) * scale


class Items(Dataset[Any]):
    """Targets as numbers of Python and NumPy."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return X[i], {"kind": int(KINDS[i]), "of": (float(Y[i]), bool(i % 2)), "count": np.int32(i)}


def pairs(*parts: Any) -> Any:
    for i in range(0, N, 8):
        yield tuple(part[i : i + 8] for part in parts)


def of_both(output: Tensor, target: Any) -> Tensor:
    """A loss that insists on the kinds that were given."""
    value, flag = target["of"]
    assert (target["kind"].dtype, value.dtype, flag.dtype) == (torch.int64, torch.float64, torch.bool)
    return F.cross_entropy(output[:, :3], target["kind"]) + torch.where(~flag, output[:, 3] - value, 0).abs().mean()


def total(output: Tensor, target: Any) -> Tensor:
    value, weight = target
    return ((output.sum(1) - value) ** 2 * weight.squeeze(-1)).mean()


def trained(place: Path, family: Any, given: Any, **options: Any) -> hfta.Study:
    settings = {"epochs": 1, "device": "cpu", "dtype": "float64", **options}
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, given, directory=place, **settings)
    study.fit(progress=False)
    return study


TREE = {"kind": KINDS, "of": (Y, torch.arange(N) % 2 == 1)}
SERIES = {"kind": pd.Series(KINDS.numpy()), "of": (Y.numpy(), torch.arange(N).numpy() % 2 == 1)}


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ((X, TREE, X, TREE), of_both),
        ((X, TREE), of_both),
        ((pd.DataFrame(X.numpy()), SERIES, X.numpy(), SERIES), of_both),
        (Items(), of_both),
        (hfta.data.from_dataset(Items(), Items(), in_memory=False), of_both),
        ((DataLoader(Items(), 8), DataLoader(Items(), 8)), of_both),
        ((TensorDataset(X, Y), (X, Y)), lambda o, y: F.mse_loss(o[:, 0], y)),
        ([(X[i], (Y[i], WEIGHTS[i])) for i in range(N)], total),
        ((lambda: pairs(X, Y), (X, Y)), lambda o, y: F.mse_loss(o[:, 0], y)),
    ],
)
def test_each_part_keeps_its_kind(given: Any, loss: Any, tmp_path: Path) -> None:
    study = trained(tmp_path, Heads, given, loss=loss)
    assert study.check(members=[0])["equal"].all()


@pytest.mark.parametrize("family", [Heads, Scaled])
@pytest.mark.parametrize("third", [WEIGHTS, torch.arange(N)])
@pytest.mark.parametrize("form", ["dataset", "loader", "function"])
def test_samples_of_three_parts_say_what_they_take(form: str, third: Tensor, family: Any, tmp_path: Path) -> None:
    whole = TensorDataset(X, Y, third.double())
    forms = {
        "dataset": (whole, whole),
        "loader": (DataLoader(whole, 8), DataLoader(whole, 8)),
        "function": (lambda: pairs(X, Y, third.double()), lambda: pairs(X, Y, third.double())),
    }
    with pytest.raises(DataError, match=r"samples of 3 parts, .* the model needs 1; .*\(x, \(y, weight\)\) or"):
        trained(tmp_path, family, forms[form], loss="mse")


def test_weights_in_samples_by_name_say_where_they_belong(tmp_path: Path) -> None:
    samples = [{"x": x, "y": y, "weight": w} for x, y, w in zip(X, Y, WEIGHTS, strict=True)]
    with pytest.raises(DataError, match=r"takes none of the name weight; .*\{\"y\": y, \"weight\": weight\}"):
        trained(tmp_path, Heads, (DataLoader(samples, 8), DataLoader(samples, 8)), loss=lambda o, y: o.square().mean())


def test_several_inputs(tmp_path: Path) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(o.sum(1), y)

    flat = trained(tmp_path / "flat", Two, (TensorDataset(X, WEIGHTS, Y),) * 2, loss=loss)
    whole = trained(tmp_path / "whole", Two, ((X, WEIGHTS), Y, (X, WEIGHTS), Y), loss=loss)
    optional = trained(tmp_path / "optional", Scaled, ((X, WEIGHTS), Y, (X, WEIGHTS), Y), loss=loss)
    values = [study.results()["val_loss"].to_list() for study in (flat, whole, optional)]
    assert values[0] == values[1] == values[2]


def test_targets_of_several_kinds_need_a_loss_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"takes one tensor of targets, .*; got \['kind', 'of'\]; .* give a loss"):
        hfta.Study(Heads, {"lr": [1e-2]}, (X, TREE), directory=tmp_path)


def test_missing_numbers(tmp_path: Path) -> None:
    x, y = X.masked_fill(X > 1, torch.nan), Y.masked_fill(Y > 1, torch.nan)

    def loss(o: Tensor, y: Tensor) -> Tensor:
        return (o[:, 0] - y).square().nanmean()

    study = trained(tmp_path / "own", Heads, (x, y, x, y), loss=loss, metrics={})
    assert study.check(members=[0])["equal"].all()
    with pytest.raises(DataError, match="y: holds infinity"):
        hfta.Study(Heads, {"lr": [1e-2]}, (X, Y.masked_fill(Y > 1, torch.inf)), directory=tmp_path / "y")
    with pytest.raises(DataError, match="x: holds NaN or infinity"):
        hfta.Study("mlp", {"lr": [1e-2]}, (x, Y), directory=tmp_path / "x")


@pytest.mark.parametrize("kind", ["objects", "strides", "bytes", "long"])
def test_arrays_of_any_form_are_data(kind: str) -> None:
    x = np.arange(24.0).reshape(6, 4)
    forms = {"objects": x.astype(object), "strides": x[::-1][::-1], "bytes": x.astype(">f8"), "long": x.astype("g")}
    found = hfta.data.from_tensors(forms[kind], x[::-1, 0], x, x[:, 0])
    assert torch.equal(found.x, torch.from_numpy(x))
    assert found.y.tolist() == x[::-1, 0].tolist()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array(["a", "b"] * 3), "encode words as whole numbers: numpy.unique"),
        ([torch.zeros(6), torch.ones(6)], r"several parts are a tuple, \(a, b\)"),
        (torch.zeros(6, 4).to_sparse(), r"not a dense tensor; got 'torch.sparse_coo'; give x.to_dense\(\)"),
        (torch.tensor([0, 1, 2, -1, 0, 1]), r"y\[y == -1\] = -100"),
    ],
)
def test_what_is_no_target_is_told_with_a_remedy(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hfta.data.from_tensors(torch.zeros(6, 4), y, torch.zeros(6, 4), y)


def test_a_saved_study_has_its_targets(tmp_path: Path) -> None:
    tree = {"kind": KINDS, "a.b": {"c%": (Y, TREE["of"])}}
    study = hfta.Study(Heads, {"lr": [1e-2]}, (X, tree), loss=lambda o, y: o.mean(), directory=tmp_path / "run")
    study.save(tmp_path / "saved")
    family = hfta.family(loss=lambda o, y: o.mean())(Heads)
    found = hfta.Study.load(tmp_path / "saved", family=family)
    names = {name: value for name, value in study.data.tensors().items() if name.startswith("y.")}
    assert set(names) == {"y.kind", "y.a%2Eb.c%25.0", "y.a%2Eb.c%25.1.0", "y.a%2Eb.c%25.1.1"}
    again = found.data.tensors()
    assert all(again[name].dtype == value.dtype and torch.equal(again[name], value) for name, value in names.items())
    assert list(found.data.y) in (["kind", "a.b"], ["a.b", "kind"])
