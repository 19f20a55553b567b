"""Arrays that have both begun and become one: each member trains as it would have without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from search.leaving import left
from search.test_slots import built, curves, study
from steering.scripted import Script

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.train import rebuild, slots
from hfta_nb.train.step import ArrayStep

EXACT = 1e-12


def search(directory: Path, **given: Any) -> hfta.Study:
    return study(directory, **({"pruner": "none", "trials": 3, "epochs": 6, "sampler": "random"} | given))


def run(made: hfta.Study, script: dict[int, Callable[[hfta.Control], Any]]) -> list[ev.Event]:
    return list(made.run(Script(script)))


def same(found: hfta.Study, wanted: hfta.Study) -> bool:
    """Whether all curves are the same, to rounding in float64."""
    mine, theirs = curves(found), curves(wanted)
    assert mine.keys() == theirs.keys()
    for variant, named in theirs.items():
        assert mine[variant].keys() == named.keys()
        for name, values in named.items():
            assert mine[variant][name] == pytest.approx(values, abs=EXACT, nan_ok=True), (variant, name)
    return True


def side_by_side(made: hfta.Study) -> list[set[int]]:
    """The members that trained each epoch together: their ends follow one another."""
    beside = ev.StepsDone | ev.DeviceSampled | ev.CheckpointSaved | ev.SpeedMeasured | ev.MemoryMeasured
    found: list[set[int]] = []
    before: ev.Event | None = None
    for event, _ in made.store.events():
        if isinstance(event, ev.EpochDone):
            if isinstance(before, ev.EpochDone) and found[-1].isdisjoint(event.variants):
                found[-1] |= set(event.variants)
            else:
                found.append(set(event.variants))
        if not isinstance(event, beside):
            before = event
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    made = search(tmp_path_factory.mktemp("merging") / "run")
    list(made.run())
    return made


PAUSED = {5: lambda c: c.pause(1), 13: lambda c: c.resume(1)}
"""Paused after one epoch, resumed in the third."""


@pytest.mark.parametrize("pause", [3, 5], ids=["in an epoch", "between two"])
def test_a_member_that_was_paused_joins_the_others_again(
    undisturbed: hfta.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: int
) -> None:
    """It trains to the end of its epoch first, for which the others step aside."""
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    made = search(tmp_path / "run")
    events = run(made, {pause: lambda c: c.pause(1), 13: lambda c: c.resume(1)})
    assert same(made, undisturbed)
    assert side_by_side(made).count({0, 1, 2}) == (4 if pause == 5 else 3)
    aside = [e.variant for e in events if isinstance(e, ev.MemberChanged) and e.reason.startswith("to join array")]
    assert aside == ([] if pause == 5 else [0, 2])
    assert made.history.count(ev.COMPLETE) == 3
    best = [{m.id: m.best_epoch for m in one.history.members.values()} for one in (made, undisturbed)]
    assert best[0] == best[1]
    for variant in range(3):
        mine, theirs = (one.member(variant).module().state_dict() for one in (made, undisturbed))
        assert all((mine[name] - theirs[name]).abs().max() < EXACT for name in theirs)


def test_arrays_step_aside_where_it_is_worth_building_them_again(undisturbed: hfta.Study, tmp_path: Path) -> None:
    """Five epochs of four steps are not."""
    made = search(tmp_path / "run")
    run(made, {3: lambda c: c.pause(1), 13: lambda c: c.resume(1)})
    assert same(made, undisturbed)
    assert {0, 1, 2} not in side_by_side(made)


@pytest.mark.parametrize("after", [4, 6])
def test_a_run_that_was_left_merges_the_same_arrays(tmp_path: Path, after: int) -> None:
    """Before they are one, and when they are; bit for bit."""
    whole = search(tmp_path / "whole")
    run(whole, PAUSED)
    again = left(search(tmp_path / "run"), after, Script(PAUSED))
    list(again.run(resume=True))
    assert {0, 1, 2} in side_by_side(again)
    assert curves(again) == curves(whole)


def test_arrays_that_do_not_fit_together_train_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was set while a member waits is not lost by it."""
    script = {5: lambda c: c.pause(1), 7: lambda c: c.set(1, lr=0.05), 13: lambda c: c.resume(1)}
    merged = search(tmp_path / "merged")
    run(merged, script)
    assert {0, 1, 2} in side_by_side(merged)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(rebuild, "recomposed", full)
    made = search(tmp_path / "run")
    run(made, script)
    assert {1} in side_by_side(made)
    assert same(made, merged)
    assert made.history.members[1].config["lr"] == 0.05
    assert made.history.count(ev.COMPLETE) == 3


def test_what_is_asked_of_members_that_wait_is_done_when_they_have_joined(
    undisturbed: hfta.Study, tmp_path: Path
) -> None:
    made = search(tmp_path / "run")
    again = {14: lambda c: c.pause(1), 20: lambda c: (c.clone(1, seed=9), c.resume(1)), 22: lambda c: c.stop(3)}
    run(made, PAUSED | again)
    found = made.history.members
    assert found.pop(3).state == ev.STOPPED
    assert same(made, undisturbed)


def test_clones_for_which_there_was_no_array_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their batch size keeps them apart from their sources, and nothing from one another."""
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    clones = {6: lambda c: (c.clone(0, batch_size=60), c.clone(2, batch_size=60))}
    made = search(tmp_path / "run")
    run(made, clones)
    assert {3, 4} in side_by_side(made)
    monkeypatch.setattr(slots, "_joiner", lambda *_: None)
    apart = search(tmp_path / "apart")
    run(apart, clones)
    assert {3} in side_by_side(apart)
    assert same(made, apart)
    assert [built(made), built(apart)] == [2, 3]


def test_trials_that_were_done_train_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ended at different times, each in an array of its own."""

    def ran(name: str) -> tuple[hfta.Study, list[set[int]]]:
        made = search(tmp_path / name, trials=6, slots=4, epochs=4)
        run(made, {4: lambda c: (c.stop(0), c.stop(1))})
        before = len(side_by_side(made))
        list(made.run(epochs=6))
        return made, side_by_side(made)[before:]

    made, found = ran("run")
    assert found == [{2, 3, 4, 5}] * 2
    monkeypatch.setattr(slots, "_joiner", lambda *_: None)
    apart, parts = ran("apart")
    assert parts == [{2, 3}, {2, 3}, {4, 5}, {4, 5}]
    assert same(made, apart)


def test_halves_of_an_array_stay_apart_while_both_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one again once enough members have gone."""
    train, failing = ArrayStep.train, [9]

    def fails(step: ArrayStep, *args: Any, **named: Any) -> Any:
        if len(step) == 4 and failing[0] == 0:
            raise torch.OutOfMemoryError("no room")
        failing[0] -= 1
        return train(step, *args, **named)

    monkeypatch.setattr(ArrayStep, "train", fails)
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    made = search(tmp_path / "run", trials=4, slots=4)
    for event in made.run(control := hfta.Control()):
        if isinstance(event, ev.ArrayHalved):
            control.stop(0)
            control.stop(3)
    assert [g.capacity for g in made.history.groups][:1] == [2]
    assert side_by_side(made)[-1] == {1, 2}
    monkeypatch.undo()
    alone = search(tmp_path / "alone", trials=4, slots=4)
    list(alone.run())
    assert [curves(made)[v] for v in (1, 2)] == [
        {name: pytest.approx(values, abs=EXACT) for name, values in curves(alone)[v].items()} for v in (1, 2)
    ]
