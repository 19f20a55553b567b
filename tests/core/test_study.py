"""A study from grid to leaderboard: events, members that end early, saving, resuming, equivalence."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import DataError, DeviceError, FamilyError, GridError, MemberError, StoreError, StudyError
from hfta_nb.records.history import History
from tests.core.stores import change_events
from tests.frames import steady


def run(study: hfta.Study, **options) -> list[ev.Event]:
    return list(study.run(**options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    """A small study in float64, run through: two arrays, three learning rates each."""
    study = hfta.Study(
        "mlp",
        {"lr": [1e-3, 1e-2, 3e-2], "width": [8, 16]},
        "digits",
        epochs=3,
        dtype="float64",
        padding="never",
        dropout=0.1,
        device="cpu",
        directory=tmp_path_factory.mktemp("runs") / "small",
    )
    run(study)
    return study


def test_events_tell_the_whole_story(finished: hfta.Study) -> None:
    replayed = History()
    events = [e for e, _ in finished.store.events()]
    for event in events:
        replayed.add(event)
    assert isinstance(events[0], ev.RunStarted)
    assert isinstance([e for e in events if not isinstance(e, ev.DeviceSampled)][1], ev.PlanMade)
    assert events[-1] == ev.RunChanged(events[-1].time_s, ev.COMPLETE)
    assert replayed.rows() == finished.history.rows()
    assert [m.state for m in replayed.members.values()] == [ev.COMPLETE] * 6
    assert all(len(m.curves["val_loss"].values) == 3 for m in replayed.members.values())
    assert any(isinstance(e, ev.DeviceSampled) for e in events)
    assert len([e for e in events if isinstance(e, ev.SpeedMeasured)]) == 2


def test_plan_says_what_fuses_and_why_not(finished: hfta.Study) -> None:
    plan = finished.plan()
    assert list(plan["members"]) == [3, 3]
    assert list(plan["differing_in"]) == ["lr", "lr"]
    assert plan["split_because"][1] == "not with array 0: width: 8 and 16"
    # 64*8 + 8, then 8*8 + 8, then 8*10 + 10
    assert plan["parameters"][0] == 682


def test_variants_of_different_architecture_share_an_array(tmp_path: Path) -> None:
    study = hfta.Study(
        "mlp",
        {"width": [8, 12, 9], "depth": [1, 2]},
        "digits",
        epochs=3,
        dtype="float64",
        dropout=0.1,
        patience=2,
        lr=0.3,
        device="cpu",
        directory=tmp_path,
        padding=0.5,
    )
    plan = study.plan()
    assert list(plan["members"]) == [6]
    assert plan["architectures"][0] == 6
    assert 0 < plan["padding"][0] < 0.5
    assert plan["differing_in"][0] == "width, depth"
    assert "6 architectures" in study.groups()[0].strategy
    run(study)
    assert study.check()["equal"].all()
    for row in study.results().index:
        width = study.variants[row].config["width"]
        assert study.member(row).module()[1].weight.shape == (width, 64)


def test_too_much_padding_keeps_variants_apart(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"width": [4, 512], "lr": [1e-3, 1e-2]}, "digits", device="cpu", directory=tmp_path)
    plan = study.plan()
    assert list(plan["members"]) == [2, 2]
    assert plan["split_because"][1] == "not with array 0: 50% of the parameters would be padding, more than 25%"
    assert plan["padding"][1] == 0
    again = hfta.Study.load(study.save(tmp_path / "kept"))
    assert again.padding == study.padding == 0.25  # whatever the device that it is opened on prefers


@pytest.mark.parametrize("given", ["always", 1.0, -0.1, True])
def test_how_much_padding_is_told(given: object) -> None:
    with pytest.raises(StudyError, match="padding: unknown choice"):
        hfta.Study("mlp", padding=given)


def test_leaderboard_is_a_table_best_first(finished: hfta.Study) -> None:
    table = finished.results()
    assert isinstance(table, pd.DataFrame)
    assert list(table["val_accuracy"]) == sorted(table["val_accuracy"], reverse=True)
    assert set(table.columns) >= {"state", "best_epoch", "train_loss", "val_loss", "lr", "width"}
    assert table.index[0] == finished.best().variant.id


def test_every_member_equals_its_serial_twin(finished: hfta.Study) -> None:
    table = finished.check(range(6))
    assert table["equal"].all()
    assert (table["epochs"] == 3).all()
    assert table[["train_loss", "val_loss", "train_accuracy", "val_accuracy"]].max(axis=None) <= 1e-10


def test_serial_study_gives_the_same(finished: hfta.Study, tmp_path: Path) -> None:
    alone = hfta.Study(
        "mlp",
        finished.grid,
        epochs=3,
        dtype="float64",
        dropout=0.1,
        device="cpu",
        serial=True,
        directory=tmp_path / "serial",
    )
    run(alone)
    pd.testing.assert_frame_equal(steady(alone.results()), steady(finished.results()), atol=1e-10, rtol=0)


def test_check_sees_a_difference(finished: hfta.Study, tmp_path: Path) -> None:
    """The comparison is one: a recorded loss that is off by a little is found."""
    copied = hfta.Study.load(finished.save(tmp_path / "copy"))

    def change(event: dict[str, Any]) -> None:
        if event["type"] == "EpochDone" and 0 in event["variants"] and event["epoch"] == 2:
            event["metrics"]["val_loss"][event["variants"].index(0)] += 1e-6

    change_events(copied.directory, change)
    table = hfta.Study.load(copied.directory).check([0])
    assert not table["equal"][0]
    assert table["val_loss"][0] == pytest.approx(1e-6, rel=1e-3)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in float32 whose one recorded loss is off by a hundredth."""
    directory = tmp_path_factory.mktemp("rounded") / "run"
    run(hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=2, device="cpu", directory=directory, width=4))

    def change(event: dict[str, Any]) -> None:
        if event["type"] == "EpochDone" and event["epoch"] == 2:
            event["metrics"]["val_loss"][0] += 1e-2

    change_events(directory, change)
    return directory


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(10, "differs"), (5e5, "equal"), (1e12, "can't tell"), (math.inf, "can't tell")],
)
def test_check_says_where_rounding_hides_the_loss_itself(
    factor: float, verdict: str, rounded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rounding makes of these curves is some 1e-7; it is taken for as many times as large."""
    monkeypatch.setattr("hfta_nb.study.check.NOISE_FACTOR", factor)
    table = hfta.Study.load(rounded).check([0])
    assert (table["verdict"][0], table["equal"][0]) == (verdict, verdict == "equal")
    sizes = {"differs": (0, 1e-2), "equal": (1e-2, 0.5), "can't tell": (1.2, math.inf)}
    low, high = sizes[verdict]
    assert low < table["tolerance"][0] <= high


def test_seeds_are_those_of_the_plain_module(tmp_path: Path) -> None:
    """Written without the library's builder, which could drop a seed unseen: first loss of every seed by hand."""
    study = hfta.Study(
        "mlp",
        {"seed": [3, 11]},
        epochs=1,
        batch_size=1437,
        dtype="float64",
        dropout=0.5,
        device="cpu",
        directory=tmp_path,
    )
    events = run(study)
    done = next(e for e in events if isinstance(e, ev.EpochDone))
    for seed, loss in zip([3, 11], done.metrics["train_loss"], strict=True):
        torch.manual_seed(seed)
        module = hfta.family("mlp").build(dropout=0.5).double()
        order = hfta.data.order(1437, 0, 0)
        x, y = study.data.x[order].double(), study.data.y[order]
        assert F.cross_entropy(module(x), y).item() == pytest.approx(loss, abs=1e-12)


def test_data_order_per_member(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"data_seed": [0, 1]}, epochs=2, dtype="float64", device="cpu", directory=tmp_path)
    assert len(study.groups()) == 1
    run(study)
    assert study.check([0, 1])["equal"].all()
    a, b = (study.history.members[i].curves["train_loss"].values for i in (0, 1))
    assert a != b


def test_taken_home_a_member_is_a_plain_module(finished: hfta.Study) -> None:
    best = finished.best()
    model = best.module()
    assert type(model) is nn.Sequential
    with torch.no_grad():
        out = model(finished.data.x_validation.double())
    accuracy = (out.argmax(1) == finished.data.y_validation).double().mean().item()
    assert accuracy == pytest.approx(best.metrics["val_accuracy"], abs=1e-12)
    assert not any("hfta" in type(m).__module__ for m in model.modules())


def test_own_family_in_five_lines(tmp_path: Path) -> None:
    @hfta.family
    def tiny(width: int = 4, sharp: bool = False, in_features: int = 1, out_features: int = 1) -> nn.Module:
        """A tiny net."""
        return nn.Sequential(
            nn.Linear(in_features, width), nn.Tanh() if sharp else nn.ReLU(), nn.Linear(width, out_features)
        )

    assert "tiny" in hfta.families()
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    study = hfta.Study(
        "tiny",
        {"sharp": [True, False], "lr": [1e-2, 1e-1]},
        (x, x.sum(1)),
        epochs=2,
        padding="never",
        device="cpu",
        directory=tmp_path,
    )
    assert study.plan()["split_because"][1] == "not with array 0: sharp: true and false (1: Tanh and ReLU)"
    run(study)
    again = hfta.Study.load(tmp_path)
    assert again.monitor == "val_loss"
    assert torch.equal(again.data.x, study.data.x)
    assert again.best().module()(x).shape == (50, 1)


def test_an_error_in_own_code_is_kept_and_raised(tmp_path: Path) -> None:
    @hfta.family(name="broken")
    def broken(in_features: int = 1) -> nn.Module:
        class Broken(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(in_features, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                raise ValueError("no way through")

        return Broken()

    study = hfta.Study("broken", {"lr": [1e-3, 1e-2]}, "digits", epochs=1, device="cpu", directory=tmp_path)
    with pytest.raises(MemberError, match="member 0, the model's own forward: ValueError: no way through"):
        run(study)
    assert study.history.state == ev.FAILED
    assert "no way through" in study.history.reason
    assert "forward" in study.history.detail


def test_global_random_numbers_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, epochs=1, dropout=0.5, device="cpu", directory=tmp_path))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("cn",), FamilyError, "did you mean cnn"),
        (("mlp", {"lrr": [1]}), GridError, "unknown axis"),
        (("mlp", {"lr": [-1.0]}), GridError, "lr: out of bounds"),
        (("mlp", {"activation": ["swish"]}), GridError, "not a choice"),
        (("mlp", {"momentum": [0.1, 0.9]}), GridError, "set optimizer to rmsprop or sgd"),
        (("mlp", {}, "digit"), DataError, "did you mean digits"),
        (("mlp", {"width": [-3]}), GridError, "width: out of bounds; got -3; accepted: at least 1 and at most"),
        (("mlp", {"dropout": [2.0]}), FamilyError, "can't build this variant"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        hfta.Study(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epochs": 0}, StudyError, "epochs: not a positive whole number"),
        ({"patience": -1}, StudyError, "patience"),
        ({"device": "gpu"}, DeviceError, "unknown device"),
        ({"dtype": "float8"}, StudyError, "float64"),
        ({"monitor": "accuracy"}, StudyError, "val_accuracy"),
        ({"learning_rate": 0.1}, GridError, "unknown axis"),
        ({"directory": 5}, StudyError, "directory: not a directory; got 5; accepted: a path"),
        ({"name": 5}, StudyError, "name: not a name; got 5"),
        ({"epochs": 2.0}, StudyError, "epochs: not a positive whole number; got 2.0"),
        ({"epochs": True}, StudyError, "epochs: not a positive whole number"),
        ({"epochs": math.inf}, StudyError, "epochs: not a positive whole number"),
    ],
)
def test_wrong_options_are_named(options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        hfta.Study("mlp", {"lr": [1e-3]}, **options)


def test_counts_may_be_numpy_s_and_are_spelt_with_one_or_many(tmp_path: Path) -> None:
    one = hfta.Study("mlp", {"lr": [1e-3]}, epochs=np.int64(1), batch_size=16, device="cpu", directory=tmp_path)
    assert type(one.epochs) is int
    assert repr(one) == "Study('mlp on digits', 1 variant in 1 array, 1 epoch)"
    two = hfta.Study("mlp", {"batch_size": [8, 16]}, epochs=2, device="cpu", directory=tmp_path)
    assert repr(two) == "Study('mlp on digits', 2 variants in 2 arrays, 2 epochs)"


def test_a_directory_holds_one_run(finished: hfta.Study, tmp_path: Path) -> None:
    again = hfta.Study("mlp", {"lr": [1e-3]}, device="cpu", directory=finished.directory)
    with pytest.raises(StudyError, match="a run is already there"):
        run(again)
    with pytest.raises(StudyError, match="the run is complete"):
        run(hfta.Study.load(finished.directory), resume=True)
    with pytest.raises(StoreError, match="no saved run here"):
        hfta.Study.load(tmp_path / "nothing")
    with pytest.raises(StudyError, match="no such variant"):
        finished.member(6)
    with pytest.raises(StudyError, match="run the study first"):
        hfta.Study("mlp", directory=tmp_path / "fresh").best()


def test_code_reproduces_the_study(finished: hfta.Study, tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(finished.to_code().split("for event in")[0])
    scope = runpy.run_path(str(cell))
    twin = scope["study"]
    assert twin.grid == finished.grid
    assert twin.options == finished.options
    assert math.isfinite(finished.best().metrics["val_loss"])


@pytest.mark.parametrize("serial", [False, True])
def test_a_family_of_lazy_modules(tmp_path: Path, serial: bool) -> None:
    @hfta.family(name="lazy")
    def lazy(width: int = 8) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.LazyLinear(width), nn.LazyBatchNorm1d(), nn.Dropout(0.2), nn.LazyLinear(10)
        )

    study = hfta.Study(
        "lazy",
        {"lr": [1e-3, 1e-2]},
        "digits",
        epochs=1,
        device="cpu",
        dtype="float64",
        directory=tmp_path,
        serial=serial,
    )
    run(study)
    assert study.check(members=[1], epochs=1)["equal"].all()
