"""Requests at moments at which a user makes them: before members begin, after they have ended, with wrong values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from search.test_merging import search
from search.test_slots import built
from steering.scripted import Script, equal, made, run, states
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import GridError, StudyError

TWO_ARRAYS = [{"lr": 1e-3, "width": 6}, {"lr": 1e-2, "width": 8}, {"lr": 1e-3, "width": 8}]


def test_members_that_wait_for_a_slot_are_paused_stopped_and_deleted(tmp_path: Path) -> None:
    """They were added to a search whose slots are taken; none of them trains but those that are to."""
    study = search(tmp_path, epochs=3)
    asked: dict[int, Callable[[hfta.Control], Any]] = {
        1: lambda c: c.add([{"lr": 1e-2, "width": 8}] * 4),
        3: lambda c: (c.delete(3), c.pause(4), c.stop(5)),
    }
    resumed = False
    for event in study.run(control := Script(asked)):
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            assert "only paused members are left (1)" in event.reason
            resumed = True
            control.resume(4)
    assert resumed
    found = {m.id: (m.state, m.epoch) for m in study.history.members.values()}
    assert [found[variant] for variant in (3, 4, 5, 6)] == [
        (ev.DELETED, 0),
        (ev.COMPLETE, 3),
        (ev.STOPPED, 0),
        (ev.COMPLETE, 3),
    ]
    assert study.check([4, 6])["equal"].all()


def test_a_member_that_waits_is_stopped_at_once(tmp_path: Path) -> None:
    """An array of which nobody is left is not built."""
    study = made(tmp_path, 2, TWO_ARRAYS, padding="never")
    events = study.run(Script({2: lambda c: (c.stop(1), c.delete(2))}))
    found = [study.history.members[1].state for event in events if isinstance(event, ev.EpochDone)]
    assert found == [ev.STOPPED, ev.STOPPED]
    assert states(study) == {0: ev.COMPLETE, 1: ev.STOPPED, 2: ev.DELETED}
    assert built(study) == 1


def test_a_member_that_waits_where_it_has_begun_is_stopped_at_once(tmp_path: Path) -> None:
    """It was resumed, in an array of its own that is next."""
    study = made(tmp_path, 3)
    events = run(study, {6: lambda c: c.pause(2), 9: lambda c: (c.resume(2), c.stop(2))})
    told = [e for e in events if isinstance(e, ev.MemberChanged) and e.variant == 2]
    assert [e.state for e in told if e.state != ev.STOPPED] == [ev.RUNNING, ev.PAUSED, ev.WAITING]
    assert {e.reason for e in told if e.state == ev.STOPPED} == {"stopped by request"}
    assert states(study)[2] == ev.STOPPED
    assert equal(study)


def test_all_members_of_a_search_are_paused_one_by_one(tmp_path: Path) -> None:
    study = search(tmp_path, trials=4, slots=2, epochs=2)
    pauses = 0
    for event in study.run(control := Script({2: lambda c: (c.pause(0), c.pause(1))})):
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            pauses += 1
            control.resume()
    assert pauses == 1
    assert states(study) == dict.fromkeys(range(4), ev.COMPLETE)
    assert study.check([0, 1])["equal"].all()


def test_what_is_asked_at_the_end_of_a_members_last_epoch_is_refused(tmp_path: Path) -> None:
    study = search(tmp_path, trials=3, slots=2, epochs=2)
    for event in study.run(control := hfta.Control()):
        if isinstance(event, ev.EpochDone) and event.epoch == 2 and 0 in event.variants:
            control.set(0, lr=1e-3)
            control.clone(1)
    assert states(study) == dict.fromkeys(range(3), ev.COMPLETE)
    assert [(refusal.request, refusal.variant) for refusal in study.history.refusals] == [("Set", 0), ("Clone", 1)]


def unlucky(width: int = 8, in_features: int = 4, out_features: int = 3) -> nn.Module:
    if width == 13 and torch.empty(0).device.type != "meta":
        raise RuntimeError("no thirteen")
    return nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, out_features))


def test_a_member_that_failed_is_cloned_with_another_value(tmp_path: Path) -> None:
    grid = [{"width": 13, "lr": 1e-3}, {"width": 8, "lr": 1e-3}]
    study = hfta.Study(unlucky, grid, "iris", epochs=2, directory=tmp_path, device="cpu")
    for event in study.run(control := hfta.Control()):
        if isinstance(event, ev.MemberChanged) and (event.variant, event.state) == (0, ev.FAILED):
            with pytest.raises(StudyError, match=r"has ended \(FAILED\).*warm=False"):
                control.clone(0, width=9)
            control.clone(0, warm=False, width=9)
    assert states(study) == {0: ev.FAILED, 1: ev.COMPLETE, 2: ev.COMPLETE}
    assert study.member(2).module()[0].out_features == 9  # type: ignore[index]


def test_the_best_member_is_deleted_after_its_end(tmp_path: Path) -> None:
    study = made(tmp_path, 2, TWO_ARRAYS, padding="never", monitor="val_loss")
    deleted: list[int] = []
    for event in study.run(control := hfta.Control()):
        if isinstance(event, ev.EpochDone) and event.variants == (1, 2) and event.epoch == 2:
            deleted.append(study.best().variant.id)
            control.delete(deleted[0])
    ranked = sorted(study.history.members.values(), key=lambda m: m.best_value)
    [winner] = [m.id for m in ranked if m.id not in deleted][:1]
    assert study.best().variant.id == winner
    assert deleted[0] not in study.results().index


def test_what_has_ended_or_is_no_number_raises_where_it_is_asked(tmp_path: Path) -> None:
    study, asked = made(tmp_path, 2, TWO_ARRAYS, padding="never"), 0
    for event in study.run(control := hfta.Control()):
        if isinstance(event, ev.EpochDone) and event.variants == (1, 2) and not asked:
            asked += 1
            with pytest.raises(
                StudyError, match=r"has ended \(COMPLETE\).*control\.extend\(epochs\) trains all longer"
            ):
                control.extend(2, variant=0)
            for value in (math.nan, math.inf, 1.5):
                with pytest.raises(GridError, match=r"width: not a (whole |finite )?number"):
                    control.clone(1, warm=False, width=value)
            with pytest.raises(GridError, match="lr: not a finite number"):
                control.set(1, lr=math.nan)
    assert asked
    assert not study.history.refusals
