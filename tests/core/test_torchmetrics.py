"""Metrics of torchmetrics: each member's equals torchmetrics' result for that member alone."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FamilyError, MemberError
from hfta_nb.models.accumulators import OfFunction, of_torchmetrics
from hfta_nb.models.metrics import checked
from tests.contract.zoo.packages import package


@pytest.fixture(scope="module")
def tm() -> Any:
    return package("torchmetrics")


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :3].argmax(1) + (x[:, 3] > 1)).long() % 3


def net(width: int = 8, in_features: int = 6, num_classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, num_classes))


def three(tm: Any, kind: str, **options: Any) -> Any:
    return getattr(tm.classification, f"Multiclass{kind}")(num_classes=3, **options)


def study(metrics: dict[str, Any], directory: Path, **options: Any) -> hfta.Study:
    family = hfta.family(net, name="net", metrics=metrics)
    data = hfta.data.from_tensors(*samples(70, 0), *samples(41, 1))
    grid = {"lr": [1e-2, 1e-1], "seed": [0, 1]}
    options = {"epochs": 2, "batch_size": 16, "dtype": "float64", "device": "cpu", **options}
    return hfta.Study(family, grid, data, directory=directory, **options)


def test_objects_are_what_they_are_for_each_member_alone(tm: Any, tmp_path: Path) -> None:
    metrics = {
        "f1": three(tm, "F1Score", average="macro"),
        "auroc": three(tm, "AUROC"),  # keeps every sample
        "calibration": three(tm, "CalibrationError"),
    }
    made = study(metrics, tmp_path / "run", epochs=1, lr=0.0, validation_batch_size=9)  # the kept weights are the last
    list(made.run())
    assert len(made.plan_groups) == 1
    x, y = samples(41, 1)
    for m in range(4):
        model = made.member(m).module()
        with torch.no_grad():
            logits = model(x.double())
        for name, metric in metrics.items():
            alone = metric.clone()
            for start in range(0, 41, 9):
                alone.update(logits[start : start + 9], y[start : start + 9])
            assert made.history.members[m].curves[f"val_{name}"].values[0] == pytest.approx(float(alone.compute()))
    assert (metrics["f1"].update_count, metrics["auroc"].update_count) == (0, 0)  # a person's own stay as they are


@pytest.mark.parametrize("serial", [False, True])
def test_every_epoch_begins_anew_in_training_and_validation(serial: bool, tm: Any, tmp_path: Path) -> None:
    metrics = {
        "accuracy": three(tm, "Accuracy", average="micro"),
        "plain": lambda out, y: (out.argmax(-1) == y).double().mean(),
    }
    made = study(metrics, tmp_path / "run", epochs=3, serial=serial)
    list(made.run())
    for member in made.history.members.values():
        for split in ("train", "val"):
            mine, plain = (member.curves[f"{split}_{name}"].values for name in ("accuracy", "plain"))
            assert mine == pytest.approx(plain, abs=1e-7)
    assert made.check(members=[1])["equal"].all()


def test_functions_are_taken_batch_by_batch(tm: Any, tmp_path: Path) -> None:
    f1 = functools.partial(tm.functional.f1_score, task="multiclass", num_classes=3)
    made = study({"f1": f1, "plain": lambda out, y: (out.argmax(-1) == y).double().mean()}, tmp_path / "run")
    list(made.run())
    for member in made.history.members.values():
        for split in ("train", "val"):  # micro-averaged, it is the accuracy
            mine, plain = (member.curves[f"{split}_{name}"].values for name in ("f1", "plain"))
            assert mine == pytest.approx(plain, abs=1e-7)


def test_which_way_is_better(tm: Any, tmp_path: Path) -> None:
    found = checked(
        {
            "accuracy": three(tm, "Accuracy"),
            "error": tm.MeanSquaredError(),
            "f_error": tm.functional.mean_squared_error,
            "f_accuracy": functools.partial(tm.functional.accuracy, task="multiclass", num_classes=3),
            "f_r2": tm.functional.r2_score,
            "own": lambda out, y: out.mean(),
        }
    )
    assert {n: m.maximize for n, m in found.items()} == {
        **{"accuracy": True, "error": False, "f_error": False, "f_accuracy": True, "f_r2": True, "own": None}
    }
    assert found["own"].accumulator is None
    assert study({"e": tm.MeanSquaredError()}, tmp_path / "a").monitor == "val_loss"
    made = study({"a": three(tm, "Accuracy")}, tmp_path / "b")
    assert (made.monitor, made.maximize) == ("val_a", True)
    logits, y = torch.eye(3), torch.tensor([0, 1, 1])
    assert float(found["f_accuracy"](logits, y)) == pytest.approx(2 / 3)


def test_a_run_goes_on_in_the_middle_of_an_epoch(tm: Any, tmp_path: Path) -> None:
    from hfta_nb.train.group_run import GroupRun

    def metrics() -> dict[str, Any]:
        f1 = functools.partial(tm.functional.f1_score, task="multiclass", num_classes=3)
        return {"auroc": three(tm, "AUROC"), "accuracy": three(tm, "Accuracy"), "f1": f1}

    whole = study(metrics(), tmp_path / "whole")
    list(whole.run())
    half, control = study(metrics(), tmp_path / "half"), hfta.Control()
    original = GroupRun._train_step

    def counted(self: GroupRun, batch: Any) -> Any:
        yield from original(self, batch)
        if self.steps == 3:
            control.stop()

    GroupRun._train_step = counted  # type: ignore[method-assign]
    try:
        list(half.run(control))
    finally:
        GroupRun._train_step = original  # type: ignore[method-assign]
    assert half.history.state == ev.STOPPED
    again = hfta.Study.load(tmp_path / "half", family=half.family)
    list(again.run(resume=True))
    for m, member in whole.history.members.items():
        for name in whole.metrics:
            found = again.history.members[m].curves[name].values
            # To rounding: how many members run at once is measured anew by each.
            torch.testing.assert_close(found, member.curves[name].values, rtol=0, atol=1e-12)


def test_members_that_leave_take_their_own_with_them(tm: Any, tmp_path: Path) -> None:
    made = study({"accuracy": three(tm, "Accuracy")}, tmp_path / "run", epochs=3)
    control = hfta.Control()
    for event in made.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            control.stop(0)
    alone = study({"accuracy": three(tm, "Accuracy")}, tmp_path / "alone", epochs=3, serial=True)
    list(alone.run())
    for m in (1, 2, 3):
        found, wanted = (s.history.members[m].curves["val_accuracy"].values for s in (made, alone))
        assert found == pytest.approx(wanted, abs=1e-10)


def test_a_collection_stands_for_its_metrics(tm: Any, tmp_path: Path) -> None:
    single = {"f1": three(tm, "F1Score"), "hits": three(tm, "Accuracy", average="micro")}
    several = tm.MetricCollection({"f1": three(tm, "F1Score"), "hits": three(tm, "Accuracy", average="micro")})
    expected = study(single, tmp_path / "single")
    list(expected.run())
    for number, (given, prefix) in enumerate([(several, ""), ([several], ""), ({"all": several}, "all_")]):
        made = hfta.Study(net, {"lr": [1e-2, 1e-1], "seed": [0, 1]}, expected.data, metrics=given, epochs=2,
                          batch_size=16, dtype="float64", device="cpu", directory=tmp_path / str(number))  # fmt: skip
        list(made.run())
        for m, name in itertools.product(range(4), single):
            found = made.history.members[m].curves[f"val_{prefix}{name}"].values
            assert found == pytest.approx(expected.history.members[m].curves[f"val_{name}"].values, abs=1e-12)


def test_metrics_that_can_not_be(tm: Any, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"a class; .*make one: MeanSquaredError\(\.\.\.\)"):
        checked({"error": tm.MeanSquaredError})
    made = study({"matrix": three(tm, "ConfusionMatrix")}, tmp_path / "matrix")
    with pytest.raises(FamilyError, match=r'metric matrix: .* not one number; got .a tensor \[3, 3\].*average="macro"'):
        list(made.run())
    made = study({"wrong": tm.classification.BinaryAccuracy()}, tmp_path / "wrong")
    with pytest.raises(MemberError, match="member 0, metric wrong: "):
        list(made.run())


def test_shares_of_classes_count_as_the_largest(tm: Any, tmp_path: Path) -> None:
    f1 = functools.partial(tm.functional.accuracy, task="multiclass", num_classes=3)
    found = checked({"object": three(tm, "Accuracy", average="micro"), "function": f1})
    logits = torch.eye(3)
    shares = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.4, 0.6, 0.0]])
    for metric in found.values():
        assert float(metric(logits, shares)) == pytest.approx(2 / 3)
    x = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pictures = hfta.data.from_tensors(x, torch.arange(32) % 3, name="pictures")

    @hfta.family(data="digits", metrics={"accuracy": three(tm, "Accuracy")})
    def flat(in_features: int = 64, num_classes: int = 3) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, num_classes))

    made = hfta.Study("flat", {"mixup": [0.0, 0.4]}, pictures, epochs=1, device="cpu", directory=tmp_path / "run")
    list(made.run())
    assert made.history.state == ev.COMPLETE


def test_what_is_not_of_torchmetrics_is_left_alone() -> None:
    assert of_torchmetrics("m", lambda out, y: out) is None
    assert of_torchmetrics("m", nn.MSELoss()) is None
    mean = OfFunction(lambda p, y: p.mean(), torch.device("cpu"))
    mean.update(torch.ones(3), None)
    mean.update(torch.zeros(1), None)
    assert float(mean.compute()) == 0.75
