"""Cross-validation: members of all folds in one array equal a loop of one's own over the folds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.model_selection import GroupKFold, KFold, RepeatedStratifiedKFold, StratifiedKFold, TimeSeriesSplit
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import DataError, GridError, StudyError
from hfta_nb.search.averages import resampled_t_test

DRAW = torch.Generator().manual_seed(3)
X = torch.randn(90, 6, generator=DRAW, dtype=torch.float64)
Y = (X[:, 0] + 0.3 * torch.randn(90, generator=DRAW) > 0.4).long() + (X[:, 1] > 1.1).long()
BATCH, EPOCHS = 16, 3
GRID = {"lr": [0.1, 0.02]}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def alone(lr: float, training: Tensor, held_out: Tensor) -> tuple[nn.Module, float]:
    """The module that a loop of one's own trains on a fold, and its last validation loss."""
    torch.manual_seed(0)
    module = model().double()
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum=0.9)
    for epoch in range(EPOCHS):
        mixed = torch.randperm(
            len(training), generator=torch.Generator().manual_seed(zlib.crc32(f"0/{epoch}".encode()))
        )
        module.train()
        for rows in training[mixed].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module(X[rows]), Y[rows]).backward()
            optimizer.step()
    module.eval()
    return module, F.cross_entropy(module(X[held_out]), Y[held_out]).item()


def study(folder: Path, folds: Any = 3, grid: Any = GRID, data: Any = (X, Y), **options: Any) -> hfta.Study:
    given: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "optimizer": "sgd", "momentum": 0.9,
                             "dtype": "float64", "device": "cpu", "keep_checkpoints": ["best", "last"]}  # fmt: skip
    return hfta.Study(model, grid, data, folds=folds, directory=folder, **{**given, **options})


def equal_to_loops(found: hfta.Study) -> None:
    for variant in found.variants:
        fold = found.data.folds[variant.config["fold"]]
        module, loss = alone(float(variant.config["lr"]), fold.training, fold.held_out)
        state = found.member(variant.id).module(at="last").state_dict()
        for name, value in module.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-10)
        assert found.history.members[variant.id].curves["val_loss"].values[-1] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("serial", [False, pytest.param(True, marks=pytest.mark.long)], ids=["fused", "serial"])
def test_each_fold_is_as_in_the_loop_of_one_s_own(serial: bool, tmp_path: Path) -> None:
    found = study(tmp_path, serial=serial)
    assert len(found.plan_groups) == (6 if serial else 1)
    found.fit(progress=False)
    equal_to_loops(found)
    assert found.check(members=[0, 5])["equal"].all()


SPLITTERS: dict[str, Callable[[], Any]] = {
    "k-fold": lambda: KFold(5),
    "stratified": lambda: StratifiedKFold(4, shuffle=True, random_state=1),
    "repeated": lambda: RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0),
    "time series": lambda: TimeSeriesSplit(3),
    "grouped": lambda: GroupKFold(3).split(X, Y, torch.arange(90) // 7),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SPLITTERS)
def test_splitters_give_their_own_splits(name: str, tmp_path: Path) -> None:
    given = SPLITTERS[name]()
    wanted = list(SPLITTERS[name]().split(X, Y) if hasattr(given, "split") else SPLITTERS[name]())
    found = study(tmp_path, given, {"lr": [0.1]})
    for fold, (training, held_out) in zip(found.data.folds, wanted, strict=True):
        assert fold.training.tolist() == list(training)
        assert fold.held_out.tolist() == list(held_out)
    sizes = {(len(training), len(held_out)) for training, held_out in wanted}
    assert len(found.plan_groups) == len(sizes)  # an array's mini-batches have one size
    assert "fold" not in found.options
    found.fit(progress=False)
    equal_to_loops(found)
    assert hfta.Study.load(tmp_path, family=model).data.folds[1].training.tolist() == list(wanted[1][0])


def test_a_number_deals_classes_evenly() -> None:
    folds = hfta.Study("mlp", GRID, (X.float(), Y), folds=4).data.folds
    assert torch.cat([fold.held_out for fold in folds]).sort().values.tolist() == list(range(90))
    for fold in folds:
        assert sorted([*fold.training.tolist(), *fold.held_out.tolist()]) == list(range(90))
    counts = torch.stack([torch.bincount(Y[fold.held_out], minlength=3) for fold in folds])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1
    assert counts.sum(1).tolist() in ([23, 23, 22, 22], [22, 23, 22, 23])


def test_results_over_folds_compare_configurations(tmp_path: Path) -> None:
    found = study(tmp_path, monitor="val_loss", grid={"lr": [0.1, 0.02], "seed": [0, 1]})
    found.fit(progress=False)
    every = found.results()
    table = found.results(over=["fold", "seed"])
    assert table["count"].tolist() == [6, 6]
    means = every.groupby(["lr", "fold"])["val_loss"].mean().unstack()
    best, other = table["lr"].tolist()
    apart = means.loc[other] - means.loc[best]
    assert table["val_loss"].tolist() == pytest.approx([means.loc[best].mean(), means.loc[other].mean()])
    assert math.isnan(table["p_value"].iloc[0])
    assert table["p_value"].iloc[1] == pytest.approx(resampled_t_test(apart.tolist(), 30 / 60))
    assert found.best(over="fold").variant.config["lr"] == found.results(over="fold")["lr"].iloc[0]


def test_the_t_test_is_that_of_the_paper() -> None:
    """By hand: mean 0.02, s^2 0.0001, variance of the mean (1/5 + 1/4) 0.0001, so t = 2.9814 with 4 degrees."""
    apart = [0.02 + 0.01 * value for value in (-1.0, -1.0, 0.0, 1.0, 1.0)]
    assert resampled_t_test(apart, 0.25) == pytest.approx(0.04068, abs=1e-5)
    assert resampled_t_test([-value for value in apart], 0.25) == pytest.approx(0.04068, abs=1e-5)
    assert resampled_t_test([0.0, 0.0], 0.5) == 1.0
    assert resampled_t_test([0.1, 0.1], 0.5) == 0.0


def test_predictions_out_of_fold_and_ensembles_are_of_samples_that_were_held_out(tmp_path: Path) -> None:
    found = study(tmp_path, monitor="val_loss")
    found.fit(progress=False)
    best = found.best(over="fold").variant.config["lr"]
    wanted, members = torch.zeros(90, 3, dtype=torch.float64), dict[float, list[int]]()
    for variant in found.variants:
        members.setdefault(float(variant.config["lr"]), []).append(variant.id)
        rows = found.data.folds[variant.config["fold"]].held_out
        if variant.config["lr"] == best:
            with torch.no_grad():
                wanted[rows] = found.member(variant.id).module()(X[rows]).softmax(1)
    torch.testing.assert_close(found.out_of_fold(), wanted)
    other = members[0.1 if best == 0.02 else 0.02]
    assert not torch.allclose(found.out_of_fold(other[1]), wanted)
    ensemble = found.ensemble(2)
    assert sorted((pick.member, round(pick.weight, 9)) for pick in ensemble.picks) == [
        (i, round(1 / 6, 9)) for i in range(6)
    ]
    both = (found.out_of_fold(members[best][0]) + found.out_of_fold(other[0])) / 2
    assert ensemble.scores().loc["ensemble", "accuracy"] == pytest.approx((both.argmax(1) == Y).double().mean().item())
    with pytest.raises(StudyError, match="no folds"):
        hfta.Study("mlp", GRID, "iris").out_of_fold()


def test_a_run_that_is_interrupted_goes_on_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"deterministic": True, "dtype": "float32", "grid": {"lr": [0.1], "seed": [0, 1]}}
    data = X.float(), Y
    whole = study(tmp_path / "whole", 4, data=data, **options)
    whole.fit(progress=False)
    parts = study(tmp_path / "parts", 4, data=data, **options)
    for number, event in enumerate(parts.run()):
        if isinstance(event, hfta.events.StepsDone) and number > 5:
            break
    again = hfta.Study.load(tmp_path / "parts", family=model)
    again.fit(resume=True, progress=False)
    for variant in whole.variants:
        mine, theirs = (s.member(variant.id).module("last").state_dict() for s in (whole, again))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_members_of_folds_are_steered_and_added(tmp_path: Path) -> None:
    found, control = study(tmp_path, monitor="val_loss"), hfta.Control()
    seen = False
    for event in found.run(control):
        if isinstance(event, hfta.events.EpochDone) and not seen:
            seen = True
            control.stop(0)
            control.clone(4, lr=0.05)
            control.add({"lr": 0.3})
            with pytest.raises(StudyError, match="another fold holds out"):
                control.clone(4, fold=0)
    members = found.history.members
    assert members[0].state == hfta.events.STOPPED
    assert members[6].config == {"lr": 0.05, "fold": 1}
    assert [members[i].config for i in (7, 8, 9)] == [{"lr": 0.3, "fold": fold} for fold in range(3)]
    assert found.results(over="fold").set_index("lr")["count"].to_dict() == {0.1: 3, 0.02: 3, 0.05: 1, 0.3: 3}
    assert found.check(members=[9])["equal"].all()


def test_a_trial_is_its_folds(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    found = study(tmp_path, 3, {"lr": hfta.uniform(1e-4, 1.0, log=True)}, monitor="val_loss", trials=6, slots=2,
                  pruner=pruner, sampler="random", epochs=4)  # fmt: skip
    found.fit(progress=False)
    table = found.results()
    trials = {trial.number: trial for trial in found.optuna.trials}
    pruned = set()
    for number, rows in table.groupby("trial"):
        assert sorted(rows["fold"]) == [0, 1, 2]
        assert len(set(rows["state"])) == 1  # pruning ends all of them
        if set(rows["state"]) == {"PRUNED"}:
            pruned.add(number)
        else:
            assert trials[number].value == pytest.approx(rows["val_loss"].mean())
        for epoch, value in trials[number].intermediate_values.items():
            curves = [found.history.members[i].curves["val_loss"] for i in rows.index]
            assert value == pytest.approx(sum(curve.values[epoch - 1] for curve in curves) / 3)
    assert 0 < len(pruned) < 6


def batches() -> Any:
    yield X, Y


WRONG: dict[str, tuple[Any, Any, str]] = {
    "one": (1, {}, "not a number of folds"),
    "more than samples": (91, {}, "not a number of folds"),
    "a word": ("five", {}, "not folds"),
    "without groups": (GroupKFold(3), {}, "give the splits"),
    "overlapping": ([([0, 1], [1, 2]), ([3], [4])], {}, "held out and trained on"),
    "beyond": ([([0, 1], [90]), ([3], [4])], {}, "not a split"),
    "one split": ([([0, 1], [2])], {}, "fewer than two"),
    "streamed": (3, {"data": lambda: hfta.data.from_batches(batches, batches)}, "batch by"),
    "a population": (3, {"population": hfta.PBT(every=1)}, "other folds"),
    "no such fold": (3, {"grid": {"fold": [0, 3]}}, "out of bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_can_t_be_done_is_said(name: str, tmp_path: Path) -> None:
    folds, options, words = WRONG[name]
    options = {key: value() if key == "data" else value for key, value in options.items()}
    with pytest.raises((DataError, StudyError, GridError), match=words):
        study(tmp_path, folds, **options)


def test_the_axis_needs_folds() -> None:
    with pytest.raises(GridError, match=r"folds=5"):
        hfta.Study("mlp", {"fold": [0, 1]}, "iris")
    with pytest.raises(GridError, match=r"folds=5"):
        hfta.Study("mlp", {"lr": [0.1]}, "iris", cv=5)


def test_data_with_validation_samples_of_its_own_keeps_them_apart(tmp_path: Path) -> None:
    kept = hfta.data.load("iris")
    found = hfta.Study("mlp", GRID, "iris", folds=3, directory=tmp_path)
    assert sum(len(fold.held_out) for fold in found.data.folds) == len(kept)
    pairs: Any = list(zip(X.float(), Y, strict=True))
    for data, count in [(pairs, 90), ({"train": pairs}, 90), ((pairs[:60], pairs[60:]), 60),
                        ({"train": pairs[:60], "test": pairs[60:]}, 60)]:  # fmt: skip
        split = hfta.Study("mlp", GRID, data, folds=3).data
        assert sum(len(fold.held_out) for fold in split.folds) == count
    assert "folds=3" in found.to_code()
