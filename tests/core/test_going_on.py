"""Extending a study: more epochs after its end, and variants added before, during and after a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import GridError, StudyError
from tests.frames import steady

OPTIONS: dict[str, Any] = {"dtype": "float64", "dropout": 0.2, "padding": "never", "device": "cpu"}


def make(place: Path, grid: Any, epochs: int, **more: Any) -> hfta.Study:
    return hfta.Study("mlp", grid, "iris", directory=place, epochs=epochs, **{**OPTIONS, **more})


def run(study: hfta.Study, **options: Any) -> list[ev.Event]:
    return list(study.run(**options))


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(steady(one), steady(other), atol=1e-10, rtol=0)


def curves(study: hfta.Study, member: int) -> dict[str, list[float]]:
    return {name: curve.values for name, curve in study.history.members[member].curves.items()}


GRID = {"lr": [1e-3, 1e-2], "width": [4, 8]}


KEPT: dict[str, dict[str, Any]] = {"none": {}, "step": {"step_size": 2}, "cosine": {"t_max": 6}}
"""Lr schedules that don't depend on the number of epochs."""


@pytest.mark.each("serial")
@pytest.mark.parametrize("schedule", KEPT)
@pytest.mark.parametrize("serial", [False, True])
def test_more_epochs_are_those_of_a_run_in_one_go(tmp_path: Path, schedule: str, serial: bool) -> None:
    whole = make(tmp_path / "whole", GRID, 6, serial=serial, lr_scheduler=schedule, **KEPT[schedule])
    run(whole)
    parts = make(tmp_path / "parts", GRID, 2, serial=serial, lr_scheduler=schedule, **KEPT[schedule])
    run(parts)
    assert parts.history.state == ev.COMPLETE
    states = [e.state for e in run(parts, epochs=4) if isinstance(e, ev.MemberChanged) and e.variant == 0]
    assert states == [ev.WAITING, ev.RUNNING, ev.COMPLETE]
    again = hfta.Study.load(parts.directory)
    assert again.epochs == 4
    run(again, epochs=6)
    same(again.results(), whole.results())
    for i in range(4):
        for name, value in whole.store.read_weights(i).items():
            torch.testing.assert_close(again.store.read_weights(i)[name], value, atol=1e-10, rtol=0)


def rates(study: hfta.Study, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[float]:
    """The learning rate of the first member in each epoch."""
    from hfta_nb.train.group_run import GroupRun

    found, method = [], GroupRun._end_epoch

    def watched(self: GroupRun) -> Any:
        update = self.step.updates[0]  # type: ignore[attr-defined]
        found.append(float(update.lr_scheduler.get_last_lr()[0][0]))
        return method(self)

    monkeypatch.setattr(GroupRun, "_end_epoch", watched)
    run(study, **options)
    monkeypatch.undo()
    return found


SPANNING: list[dict[str, Any]] = [
    *({"lr_scheduler": name} for name in ("cosine", "linear", "cosine_restarts")),
    *({"lr_scheduler": "cosine", "warmup_steps": 3}, {"lr_scheduler": "onecycle"}),
]


@pytest.mark.each("kind")
@pytest.mark.parametrize(
    ("kind", "how"), [("by epoch" if number < 3 else "by step", how) for number, how in enumerate(SPANNING)]
)
def test_a_schedule_that_spans_the_run_goes_on_by_the_new_length(
    tmp_path: Path, kind: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first new epoch on it has the values that it has in a run of so many from the start."""
    grid = {"lr": [1e-2, 1e-3]}
    planned = rates(make(tmp_path / "whole", grid, 8, **how), monkeypatch)
    study = make(tmp_path / "parts", grid, 4, **how)
    run(study)
    assert rates(study, monkeypatch, epochs=8) == pytest.approx(planned[4:], rel=1e-12)
    table = study.check([0])
    assert (table["epochs"][0], table["equal"][0]) == (4, True)


def test_more_epochs_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", GRID, 5)
    run(whole)
    study = make(tmp_path / "parts", GRID, 3)
    for event in study.run():
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (1, 2):
            break
    run(study, epochs=5)
    same(study.results(), whole.results())


def test_members_that_ended_early_stay_ended(tmp_path: Path) -> None:
    study = make(tmp_path, {"lr": [0.0, 1e-2]}, 4, patience=2, monitor="val_loss")
    run(study)
    run(study, epochs=6)
    still, moving = study.history.members.values()
    assert (still.epoch, still.state, moving.epoch) == (3, ev.COMPLETE, 6)
    assert study.add({"lr": 0.0}) == [2]
    run(study)
    assert study.history.members[2].epoch == 3
    assert curves(study, 2)["train_loss"] == pytest.approx(curves(study, 0)["train_loss"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"already there, and complete; train on with run\(epochs=\.\.\.\)"),
        ({"resume": True}, r"the run is complete; train on with run\(epochs=4\)"),
        ({"epochs": 2}, "the run is complete"),
        ({"epochs": 1}, "epochs: not more epochs than before; got 1; accepted: more than 2"),
        ({"epochs": 0}, "epochs: not a positive whole number"),
    ],
)
def test_what_a_complete_run_does_not_do(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    study = make(tmp_path, {"lr": [1e-3]}, 2)
    run(study)
    with pytest.raises(StudyError, match=words):
        run(study, **options)


def test_all_members_have_ended_early(tmp_path: Path) -> None:
    study = make(tmp_path, {"lr": [0.0]}, 4, patience=1, monitor="val_loss")
    run(study)
    with pytest.raises(StudyError, match="all ended early"):
        run(study, epochs=6)


@dataclass
class Config:
    lr: float
    width: int = 8


LISTED = [{"lr": 1e-3, "width": 4}, {"lr": 1e-2, "width": 8}, {"lr": 3e-2}]


@pytest.mark.each
@pytest.mark.parametrize("grid", [LISTED, (Config(1e-3, 4), Config(1e-2), {"lr": 3e-2})])
def test_a_list_of_configurations_is_a_grid(tmp_path: Path, grid: Any) -> None:
    study = make(tmp_path, grid, 2)
    default = hfta.family("mlp").axes["width"].default
    assert [v.config for v in study.variants] == [*LISTED[:2], {"lr": 3e-2, "width": default}]
    run(study)
    for number, config in enumerate(LISTED):
        alone = make(tmp_path / str(number), {k: [v] for k, v in config.items()}, 2)
        run(alone)
        for name, values in curves(alone, 0).items():
            assert curves(study, number)[name] == pytest.approx(values, abs=1e-10)
    again = hfta.Study.load(tmp_path)
    assert again.grid == study.grid
    same(again.results(), study.results())
    assert "{'lr': 0.001, 'width': 4}" in study.to_code()


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (7, "grid: not a grid; got 7; accepted: a dict of axes to values, or a list of configurations"),
        ("lr", "grid: not a grid"),
        ([], "grid: no configuration"),
        ([3], "grid: not a configuration; got 3; accepted: a dict or an instance of a dataclass"),
        ([Config], "grid: not a configuration"),
        ([{"lr": 0.1}, {"lr": 0.1}], "given twice"),
        ([{"lr": (0.1, 0.2)}], "lr: not a number"),
        ([{"lr": [0.1, 0.2], "width": 4}], "lr: not a number"),
        ([{"lrr": 0.1}], "unknown axis"),
    ],
)
def test_lists_that_are_no_grid(tmp_path: Path, grid: Any, words: str) -> None:
    with pytest.raises(GridError, match=words):
        make(tmp_path, grid, 2)


@pytest.mark.each
@pytest.mark.parametrize("when", ["before", "in the loop", "by control", "at the end", "after"])
def test_variants_that_are_added(tmp_path: Path, when: str) -> None:
    """Whenever they come, they get numbers of their own, and give what they give alone."""
    study, control = make(tmp_path / "study", {"lr": [1e-3, 1e-2]}, 3), hfta.Control()
    more: list[Any] = [{"lr": 3e-2, "width": 4}, Config(1e-4)]
    if when == "before":
        assert study.add(more) == [2, 3]
        assert len(study.groups()) == 3
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == (3 if when == "at the end" else 2) and event.group == 0:
            if when in ("in the loop", "at the end"):
                assert study.add(more) == [2, 3]
            elif when == "by control":
                control.add(more)
    if when == "after":
        assert study.add(more[0]) == [2]
        assert study.add(more[1:]) == [3]
        assert [m.state for m in study.history.members.values()] == [ev.COMPLETE] * 2
        run(study)
    assert study.history.state == ev.COMPLETE
    width = hfta.family("mlp").axes["width"].default
    sizes = {1e-3: width, 1e-2: width, 3e-2: 4, 1e-4: 8}
    alone = make(tmp_path / "alone", [{"lr": lr, "width": width} for lr, width in sizes.items()], 3)
    run(alone)
    for found in (study, hfta.Study.load(study.directory)):
        same(found.results().sort_index(), alone.results().sort_index())
        assert found.member(2).module()[1].weight.shape == (4, 4)
    run(found, epochs=4)
    assert {m.epoch for m in found.history.members.values()} == {4}
    assert found.check([3])["equal"].all()


def test_a_wrong_variant_is_not_added(tmp_path: Path) -> None:
    study, control, told = make(tmp_path, {"lr": [1e-3]}, 2), hfta.Control(), []
    with pytest.raises(GridError, match="unknown axis"):
        study.add({"lrr": 1})
    for event in study.run(control):
        if isinstance(event, ev.RunStarted):
            control.add({"lrr": 1})
            with pytest.raises(GridError, match="unknown axis"):
                study.add([{"lr": 1e-2}, {"lrr": 1}])
        if isinstance(event, ev.PhaseChanged) and "not added" in event.detail:
            told.append(event.detail)
    assert len(told) == 1
    assert "unknown axis" in told[0]
    assert len(study.variants) == len(study.history.members) == 1


def test_variants_are_added_to_a_run_that_was_stopped(tmp_path: Path) -> None:
    study = make(tmp_path / "study", {"lr": [1e-3, 1e-2]}, 3)
    for event in study.run():
        if isinstance(event, ev.EpochDone):
            break
    study.add({"lr": 3e-2})
    run(hfta.Study.load(study.directory), resume=True)
    alone = make(tmp_path / "alone", {"lr": [1e-3, 1e-2, 3e-2]}, 3)
    run(alone)
    same(study.results().sort_index(), alone.results().sort_index())


def test_the_same_request_counts_once() -> None:
    one = ev.Add(({"lr": 0.1},), "key")
    assert ev.from_json(ev.to_json(one)) == one
    assert len(dict.fromkeys([one, one])) == 1
