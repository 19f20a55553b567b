"""Every optimizer and lr scheduler of the training axes: members of a study equal training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import optim
from hfta_nb.errors import GridError
from hfta_nb.models.training_axes import LR_SCHEDULERS, OPTIMIZERS, TRAINING_AXES, USED_BY
from hfta_nb.records.events import MemberImproved
from hfta_nb.search.grid import parse_axis
from hfta_nb.train.step.choices import lr_scheduler_of, optimizer_of

EPOCHS, STEPS = 4, 5
VALUES: dict[str, list[Any]] = {
    "lr": [3e-3, 3e-2],
    "weight_decay": [0.0, 0.1],
    "momentum": [0.5, 0.9],
    "beta1": [0.8, 0.95],
    "beta2": [0.9, 0.99],
    "eps": [1e-8, 1e-3],
    "step_size": [1, 2],
    "gamma": [0.5, 0.9],
    "milestones": [[1, 3], [2]],
    "t_max": [2, 3],
    "eta_min": [0.0, 1e-3],
    "pct_start": [0.2, 0.5],
    "power": [0.5, 2.0],
}
COMMON = {"lr": VALUES["lr"]}


def swept(axis: str, value: str) -> list[dict[str, Any]]:
    """Members with the first value of each axis that this value uses, with the last of each, and with one changed."""
    used = [n for n, (other, values) in USED_BY.items() if other == axis and value in values and n in VALUES]
    found = COMMON | {n: VALUES[n] for n in used}
    if axis == "lr_scheduler":
        found |= {"weight_decay": VALUES["weight_decay"]}
    if value == "muon":  # its Newton-Schulz iteration is in bfloat16: fewer members, and lr alone
        found = {"lr": VALUES["lr"], "weight_decay": VALUES["weight_decay"]}
    first, last = ({name: values[end] for name, values in found.items()} for end in (0, -1))
    changed = [{**first, name: last[name]} for name in found]
    return [first, *changed, *([last] if len(found) > 1 else [])]


CASES = [("optimizer", value) for value in OPTIMIZERS]
CASES += [("lr_scheduler", value) for value in LR_SCHEDULERS if value != "plateau"]  # which has a test of its own


@pytest.mark.only(value=["adamw", "cosine"])
@pytest.mark.parametrize(("axis", "value"), CASES)
def test_members_are_what_they_are_alone(axis: str, value: str, tmp_path: Path) -> None:
    """Twenty steps in float64, against torch's own classes: losses, and weights at the best epoch."""
    options: dict[str, Any] = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "dtype": "float64", "device": "cpu"}
    options |= {"batch_size": 24, "width": 8, "depth": 1, axis: value}
    grid = swept(axis, value)
    studies = [
        hfta.Study("mlp", grid, "iris", directory=tmp_path / name, serial=serial, **options)
        for name, serial in (("fused", False), ("serial", True))
    ]
    assert len(studies[0].groups()) == 1
    for study in studies:
        list(study.run())
    fused = studies[0]
    for variant in fused.variants:
        mine, theirs = (study.history.members[variant.id].curves for study in studies)
        for name in ("train_loss", "val_loss"):
            assert len(mine[name].values) == EPOCHS
            assert mine[name].values == pytest.approx(theirs[name].values, rel=0, abs=1e-10)
        weights = [study.member(variant.id).module().state_dict() for study in studies]
        for key, weight in weights[0].items():
            torch.testing.assert_close(weight, weights[1][key], atol=1e-10, rtol=0)
    assert fused.check([0])["equal"].all()
    losses = {fused.history.members[v.id].curves["train_loss"].values[-1] for v in fused.variants}
    assert len(losses) == len(fused.variants)  # what is swept has an effect


@pytest.mark.parametrize("value", ["none", *(v for v in LR_SCHEDULERS if v not in ("onecycle", "cyclic", "plateau"))])
@pytest.mark.only(value=["none", "cosine"])
def test_a_warm_up_before_any_schedule(value: str, tmp_path: Path) -> None:
    """Members with a warm-up, which go on with every step, are what torch's `SequentialLR` makes of them."""
    grid = {"lr": [3e-3, 3e-2], "warmup_steps": [0, 3, 7]}
    options: dict[str, Any] = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "dtype": "float64", "device": "cpu"}
    options |= {"batch_size": 24, "width": 8, "depth": 1, "lr_scheduler": value, "optimizer": "adamw"}
    options |= {"step_size": 2, "min_lr": 1e-4} if value in ("sequential", "cosine") else {}
    fused, serial = (
        hfta.Study("mlp", grid, "iris", directory=tmp_path / str(one), serial=one, **options) for one in (False, True)
    )
    assert len(fused.groups()) == 1
    for study in (fused, serial):
        list(study.run())
    for variant in fused.variants:
        mine, theirs = (study.history.members[variant.id].curves["train_loss"].values for study in (fused, serial))
        assert mine == pytest.approx(theirs, rel=0, abs=1e-10)
    losses = {fused.history.members[v.id].curves["train_loss"].values[-1] for v in fused.variants}
    assert len(losses) == len(fused.variants)


def plateaus(directory: Path, grid: dict[str, Any] | None = None, **given: Any) -> hfta.Study:
    """Two lr, of which the larger does not get better every epoch; lr drops after two validations without."""
    options: dict[str, Any] = {"epochs": 16, "dtype": "float64", "device": "cpu", "batch_size": 24, "width": 8}
    options |= {"lr_scheduler": "ReduceLROnPlateau", "gamma": 0.1, "optimizer": "sgd", "monitor": "val_loss"}
    grid = grid or {"lr": [0.05, 2.0], "plateau_patience": [0, 1]}
    return hfta.Study("mlp", grid, "iris", directory=directory, **options | given)


@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy"])
@pytest.mark.each
def test_lr_drops_where_the_monitored_metric_stops_improving(monitor: str, tmp_path: Path) -> None:
    """As torch's own does alone, by a metric that is to fall and by one that is to rise; other lr see no drop."""
    fused, serial = (plateaus(tmp_path / str(one), monitor=monitor, serial=one, patience=None) for one in (False, True))
    for study in (fused, serial):
        list(study.run())
    steady = plateaus(tmp_path / "steady", monitor=monitor, lr_scheduler="none", grid={"lr": [0.05, 2.0]})
    list(steady.run())
    for variant in fused.variants:
        mine, theirs = (s.history.members[variant.id].curves["train_loss"].values for s in (fused, serial))
        assert mine == pytest.approx(theirs, rel=0, abs=1e-10)
    ends = [fused.history.members[v.id].curves["train_loss"].values[-1] for v in fused.variants]
    plain = [steady.history.members[v.id].curves["train_loss"].values[-1] for v in steady.variants]
    assert len({*ends[2:], plain[1]}) == 3  # lr 2.0 dropped, at different epochs


def test_a_run_that_is_left_and_goes_on_remembers_the_plateau(tmp_path: Path) -> None:
    whole, parts = plateaus(tmp_path / "whole"), plateaus(tmp_path / "parts")
    list(whole.run())
    for event in parts.run():
        if isinstance(event, MemberImproved) and event.epoch >= 3:
            break
    list(parts.run(resume=True))
    for variant in whole.variants:
        ours, theirs = (s.history.members[variant.id].curves["train_loss"].values for s in (whole, parts))
        assert list(ours) == list(theirs)


@pytest.mark.parametrize("value", [[3, 2], [], [0], [1.5], "a/b", True])
def test_milestones_that_are_none(value: Any, tmp_path: Path) -> None:
    with pytest.raises(GridError, match="milestones: "):
        hfta.Study("mlp", {"milestones": [value]}, "iris", lr_scheduler="multistep", directory=tmp_path)


def test_milestones_on_a_command_line() -> None:
    assert parse_axis("milestones=2/5,4", TRAINING_AXES) == ("milestones", ((2, 5), (4,)))


def test_the_axes_offer_what_there_is() -> None:
    row = {name: spec.default for name, spec in TRAINING_AXES.items()}
    for value in OPTIMIZERS:
        name, given = optimizer_of({**row, "optimizer": value})
        assert issubclass(getattr(optim, name), optim.ArrayOptimizer)
        torchs = getattr(optim, name).torch_class([torch.zeros(1, 1, requires_grad=True)], lr=1.0).defaults
        told = {k: v for k, v in given.items() if k not in ("lr", "weight_decay")}
        assert {k: torchs[k] for k in told} == told  # the axes' defaults are torch's
    for value in LR_SCHEDULERS:
        found = lr_scheduler_of({**row, "lr_scheduler": value}, 3, 5)
        assert found is not None
        assert hasattr(torch.optim.lr_scheduler, found[0])
    assert lr_scheduler_of(row, 3) is None
