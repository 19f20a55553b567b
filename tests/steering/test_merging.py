"""Arrays of a grid that have both begun and become one: each member equals its serial twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from search.leaving import left
from search.test_merging import side_by_side
from search.test_slots import curves
from steering.scripted import Script, equal, made, run, states
from steering.twins import net

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.train import rebuild
from hfta_nb.train.step import ArrayStep

ASKED = dict[int, Callable[[hfta.Control], Any]]
PAUSED: ASKED = {4: lambda c: c.pause(1), 9: lambda c: c.resume(1)}
"""Paused after one epoch, resumed in the third, after which it joins the others."""
WIDTHS = [{"lr": 1e-3, "width": 6}, {"lr": 1e-2, "width": 9}, {"lr": 3e-3, "width": 7}]


@pytest.mark.parametrize("given", [{}, {"grid": WIDTHS, "padding": 0.9}], ids=["of a width", "of several"])
@pytest.mark.parametrize("kind", ["none", "cosine"])
@pytest.mark.each
def test_a_member_that_was_paused_joins_the_others_again(tmp_path: Path, kind: str, given: dict[str, Any]) -> None:
    study = made(tmp_path, 5, lr_scheduler=kind, **given)
    run(study, PAUSED)
    assert side_by_side(study) == [{0, 1, 2}, {0, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}, {1}, {1}]
    assert states(study) == dict.fromkeys(range(3), ev.COMPLETE)
    assert equal(study)
    assert study.check([0, 1, 2])["equal"].all()


def test_the_patience_with_a_member_that_was_paused_goes_on(tmp_path: Path) -> None:
    """Validations without improvement are counted on in the array that it joins: all end three after their first."""
    study = made(tmp_path, 8, patience=3, min_delta=1e9)
    run(study, PAUSED)
    assert {0, 1, 2} in side_by_side(study)[2:]
    assert [len(m.curves["val_loss"].values) for m in study.history.members.values()] == [4, 4, 4]


def test_others_step_aside_for_one_that_was_paused_in_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    study = made(tmp_path, 5)
    run(study, {6: lambda c: c.pause(1), 9: lambda c: c.resume(1)})
    assert side_by_side(study) == [{0, 1, 2}, {0, 2}, {0, 2}, {1}, {0, 1, 2}, {0, 1, 2}, {1}]
    assert equal(study)


def test_clones_that_did_not_fuse_with_their_sources_share_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    study = made(tmp_path, 4)
    run(study, {5: lambda c: (c.clone(0, batch_size=12), c.clone(2, batch_size=12))})
    assert {3, 4} in side_by_side(study)
    assert equal(study)


def test_what_is_asked_of_members_that_joined_again(tmp_path: Path) -> None:
    study = made(tmp_path, 5)
    asked: ASKED = {14: lambda c: (c.set(1, lr=1e-4), c.extend(1, variant=0), c.clone(1)), 16: lambda c: c.pause(2)}
    run(study, PAUSED | asked | {19: lambda c: c.resume(2)})
    assert [len(m.curves["val_loss"].values) for m in study.history.members.values()] == [6, 5, 5, 4]
    assert equal(study)


@pytest.mark.parametrize("after", [3, 5, 6])
@pytest.mark.only(after=[5])
def test_a_run_that_was_left_merges_the_same_arrays(tmp_path: Path, after: int) -> None:
    whole = made(tmp_path / "whole", 5)
    run(whole, PAUSED)
    again = left(made(tmp_path / "run", 5), after, Script(PAUSED), net)
    list(again.run(resume=True))
    assert side_by_side(again)[-4:] == [{0, 1, 2}, {0, 1, 2}, {1}, {1}]
    assert curves(again) == curves(whole)


def test_they_train_on_from_where_each_was(tmp_path: Path) -> None:
    """Member 1 has joined two epochs behind the others; all have ended after three of their own."""
    study = made(tmp_path, 4, lr_scheduler="step", step_size=2)
    run(study, PAUSED)
    again = hfta.Study.load(tmp_path, family=net)
    list(again.run(epochs=6))
    assert [m.epoch for m in again.history.members.values()] == [6, 6, 6]
    assert side_by_side(again)[-2:] == [{0, 1, 2}] * 2
    assert equal(again)


def test_members_of_a_population_are_of_one_age(tmp_path: Path) -> None:
    """One that was paused is compared with nobody."""
    study = made(tmp_path, 5, population=hfta.Halving(every=2))
    run(study, PAUSED)
    assert side_by_side(study)[-3:] == [{1}] * 3
    assert equal(study)


def test_halves_of_an_array_stay_apart_while_both_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one again once enough members have gone."""
    train, sizes = ArrayStep.train, list[int]()

    def fails(step: ArrayStep, *args: Any, **named: Any) -> Any:
        sizes.append(len(step))
        if len(step) == 4 and len(sizes) > 4:
            raise torch.OutOfMemoryError("no room")
        return train(step, *args, **named)

    monkeypatch.setattr(ArrayStep, "train", fails)
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    study = made(tmp_path, 8, {"lr": [1e-3, 1e-2, 3e-3, 1e-4]})
    halved = ended = 0
    for event in study.run(control := hfta.Control()):
        halved += isinstance(event, ev.ArrayHalved)
        ended += isinstance(event, ev.EpochDone) and halved > 0
        if isinstance(event, ev.EpochDone) and ended == 3:
            control.stop(0)
            control.stop(3)
        if halved > 1:
            break
    assert halved == 1
    assert {1, 2} in side_by_side(study)
    assert equal(study)
