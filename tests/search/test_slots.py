"""Slots of a search: trials join the array that trains, in the places of those that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from search.leaving import left
from torch import nn

import hfta_nb as hfta
from benchmarks.search import occupied, slot_steps, useful
from hfta_nb import events as ev
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.errors import MemberError, StudyError
from hfta_nb.train import failures, rebuild
from hfta_nb.train.members import Members
from hfta_nb.train.plan import Builder
from hfta_nb.train.step import ArrayStep

LR = hfta.uniform(1e-4, 1e-1, log=True)


def study(directory: Path, space: Any = None, **given: Any) -> hfta.Study:
    given = {"epochs": 4, "trials": 9, "slots": 3, "sampler": "random", "pruner": "asha", "seed": 1} | given
    given = {"dtype": "float64", "dropout": 0.2, "batch_size": 32, "lr_scheduler": "cosine", "depth": 1} | given
    axes = space or {"lr": LR, "data_seed": [0, 1], "width": [8]}
    return hfta.Study("mlp", axes, "iris", directory=directory, device="cpu", strategy="fixed", **given)


def built(study: hfta.Study) -> int:
    """Arrays that were built from nothing."""
    found = [event for event, _ in study.store.events() if isinstance(event, ev.PhaseChanged)]
    return sum(event.phase == "building" for event in found)


def curves(study: hfta.Study) -> dict[int, Mapping[str, list[float]]]:
    return {m.id: {n: c.values for n, c in m.curves.items()} for m in study.history.members.values()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    made = study(tmp_path_factory.mktemp("slots") / "run")
    list(made.run())
    return made


def test_modules_of_trials_that_are_added_are_built_to_look_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    build = Builder._new

    def counted(builder: Builder, variant: Any, arguments: dict[str, Any]) -> nn.Module:
        if not builder.shaped:
            looked.append(arguments["width"])
        return build(builder, variant, arguments)

    monkeypatch.setattr(Builder, "_new", counted)
    made = study(tmp_path / "run", {"lr": LR, "width": hfta.integers(4, 400)}, epochs=1, trials=6, slots=2)
    first = {variant.config["width"] for variant in made.variants}
    list(made.run())
    later = {variant.config["width"] for variant in made.variants} - first
    assert len(later) > 1
    assert all(looked.count(width) == 1 for width in later)


def test_trials_join_the_array_that_trains(ran: hfta.Study) -> None:
    assert built(ran) == 1
    assert [m.state for m in ran.history.members.values()].count("PRUNED") > 2
    assert len(ran.results()) == len(ran.optuna.trials) == 9
    most = 0
    for event, _ in ran.store.events():
        if isinstance(event, ev.SlotsFreed):
            assert event.members + event.free == 3
            most = max(most, event.free)
    assert most


def test_a_member_counts_its_own_epochs(ran: hfta.Study) -> None:
    for trial, member in zip(ran.optuna.trials, ran.history.members.values(), strict=True):
        for name, curve in member.curves.items():
            assert curve.epochs == list(range(1, len(curve.epochs) + 1)), name
            assert curve.steps == [4 * epoch for epoch in curve.epochs]  # of 120 samples, 32 at a time
        assert list(trial.intermediate_values) == member.curves[ran.monitor].epochs
        assert member.state != "COMPLETE" or member.epoch == 4
        assert member.step_loss.epochs[-1] <= 4


def test_members_are_what_they_are_alone(ran: hfta.Study) -> None:
    """With dropout, a cosine schedule, and an order of the data of their own."""
    assert ran.check(list(ran.history.members))["equal"].all()


def test_the_best_weights_of_all_are_kept(ran: hfta.Study) -> None:
    for variant in ran.history.members:
        module = ran.member(variant).module()
        assert all(bool(p.isfinite().all()) and bool(p.any()) for p in module.parameters())
    best = ran.best()
    x, y = ran.data.floats(ran.data.x_validation, torch.float64).double(), ran.data.y_validation
    accuracy = float((best.module().double().eval()(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(ran.history.members[best.variant.id].best_value)


@pytest.mark.parametrize("after", [1, 4, 7, 11])
@pytest.mark.only(after=[4])
def test_a_search_that_was_left_goes_on_as_if_it_had_not_been(ran: hfta.Study, tmp_path: Path, after: int) -> None:
    again = left(study(tmp_path / "run"), after)
    list(again.run(resume=True))
    assert [t.params for t in again.optuna.trials] == [t.params for t in ran.optuna.trials]
    assert [t.state for t in again.optuna.trials] == [t.state for t in ran.optuna.trials]
    assert curves(again) == curves(ran)


def test_a_search_trains_on(tmp_path: Path) -> None:
    """Members that ended with others still training are kept like all others, and go on to more epochs."""
    made = study(tmp_path / "run", pruner="none", trials=5, epochs=2)
    list(made.run())
    list(made.run(epochs=4))
    whole = study(tmp_path / "whole", pruner="none", trials=5, epochs=4)
    list(whole.run())
    for variant, found in curves(made).items():
        assert len(found["train_loss"]) == 4
        alone = curves(whole)[variant]["train_loss"]
        assert found["train_loss"][2:] != alone[2:]  # lr has fallen to its end once before
    assert made.history.count(ev.COMPLETE) == 5


def test_trials_that_do_not_fuse_wait_for_an_array_of_theirs(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"lr": LR, "optimizer": ["sgd", "adam"], "width": [8]}, trials=12)
    running: set[int] = set()
    for event in made.run():
        if isinstance(event, ev.MemberChanged):
            (running.add if event.state == ev.RUNNING else running.discard)(event.variant)
            kinds = {made.history.members[v].config["optimizer"] for v in running}
            assert len(kinds) <= 1
            assert len(running) <= 3
    assert len(made.results()) == 12
    assert made.history.count(ev.COMPLETE, ev.PRUNED) == 12
    assert {t.params["optimizer"] for t in made.optuna.trials} == {"sgd", "adam"}


def test_widths_share_an_array(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"lr": LR, "width": hfta.integers(6, 12)}, trials=8, dropout=0.0)
    list(made.run())
    assert len(made.results()) == 8
    assert made.check(list(made.history.members))["equal"].all()
    for variant in made.variants:
        assert made.member(variant.id).module()[1].out_features == variant.config["width"]


def test_a_member_ends_when_it_has_had_its_steps(tmp_path: Path) -> None:
    """Of four steps an epoch, at the end of the epoch in which it has them; those that join begin anew."""
    made = study(tmp_path / "run", pruner="none", trials=4, slots=2, member_steps=6)
    list(made.run())
    for member in made.history.members.values():
        assert (member.state, member.epoch) == ("COMPLETE", 2)
        assert member.reason == "8 steps, of 6 that it may have"
    again = hfta.Study.load(tmp_path / "run")
    assert again.member_steps == 6


@pytest.mark.parametrize("given", [{"member_steps": 0}, {"member_seconds": 0.0}, {"member_seconds": "1"}])
def test_what_is_no_limit(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="member_"):
        study(tmp_path / "run", **given)


def test_seconds_end_members_too(tmp_path: Path) -> None:
    made = study(tmp_path / "run", pruner="none", trials=2, slots=2, member_seconds=1e-6)
    list(made.run())
    assert {(m.state, m.epoch) for m in made.history.members.values()} == {("COMPLETE", 1)}


def test_books_of_a_version_without_slots_open(ran: hfta.Study) -> None:
    """All members have begun with their array there."""
    group = ran.plan_groups[0]
    books = Members(group, "val_loss", False, None, [dict] * len(group.variants))
    state = books.state()
    assert state.pop("begun") == [[0, 0, 0, 0.0]] * len(group.variants)
    books.load(state, group.ids[:1])
    assert [(m.id, m.start, m.first_step) for m in books.active] == [(group.ids[0], 0, 0)]


def only_as_a_plan(width: int = 8, in_features: int = 4, out_features: int = 3) -> nn.Module:
    if width == 13 and torch.empty(0).device.type != "meta":
        raise RuntimeError("no thirteen")
    return nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, out_features))


def test_a_trial_that_can_not_be_built_fails_alone(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"width": 13 if trial.number == 4 else 8, "lr": trial.suggest_float("lr", 1e-3, 1e-1)}

    given: dict[str, Any] = {"trials": 7, "slots": 3, "sampler": "random", "epochs": 2, "padding": 0.9}
    made = hfta.Study(only_as_a_plan, space, "iris", directory=tmp_path / "run", device="cpu", **given)
    list(made.run())
    states = dict(made.results()["state"])
    assert states.pop(4) == "FAILED"
    assert set(states.values()) == {"COMPLETE"}
    assert len(states) == 6
    assert "no thirteen" in made.history.members[4].reason


def test_most_of_the_slots_are_used(tmp_path: Path) -> None:
    """Hyperband with rungs at 1, 3, 9, 27 and 81 epochs."""
    space = {"lr": LR, "width": [8]}
    made = study(tmp_path / "run", space, pruner="hyperband", epochs=81, slots=3, trials=12, batch_size=128)
    with slot_steps() as steps:
        events = list(made.run())
    ends = {len(m.curves["train_loss"].values) for m in made.history.members.values() if m.state == "PRUNED"}
    assert len(ends) >= 3
    assert max(slots for slots, _ in steps) == 3
    assert useful(steps) >= 0.9
    assert occupied(events, 3)["until_last_asked"] >= 0.9


def test_places_that_nobody_takes_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They train on unseen: an lr schedule that is at its end does not go on."""
    widths: set[int] = set()
    train = ArrayStep.train
    monkeypatch.setattr(
        ArrayStep, "train", lambda step, *args, **kw: (widths.add(len(step)), train(step, *args, **kw))[1]
    )
    given: dict[str, Any] = {"dtype": "float64", "batch_size": 32, "device": "cpu", "lr_scheduler": "onecycle"}
    given |= {"dropout": 0.2, "depth": 1, "sampler": "random", "pruner": "asha", "seed": 8}
    space = {"lr": LR, "data_seed": [0, 1], "width": [8]}
    for name, worth in (("kept", 1e9), ("cut", 0.0)):
        monkeypatch.setattr(rebuild, "RECORDING_STEPS", worth)
        widths.clear()
        made = hfta.Study("mlp", space, "iris", epochs=3, trials=8, slots=6, directory=tmp_path / name, **given)
        list(made.run())
        assert (widths == {6}) == (name == "kept")
        assert {"PRUNED", "COMPLETE"} == {m.state for m in made.history.members.values()}
        assert made.check(list(made.history.members))["equal"].all()


@pytest.mark.parametrize(("members", "left", "block_size", "cut"), [
    (4, 10, 8, False), (4, 60, 8, True), (4, 30, 2, True), (4, 10, 2, False), (7, 999, 2, False),
])  # fmt: skip
def test_an_array_of_which_all_members_run_at_once_keeps_its_places_longer(
    members: int, left: int, block_size: int, cut: bool
) -> None:
    """Its steps take nearly as long with fewer members; what recording them anew costs does not shrink with them."""
    step = MagicMock(spec=ArrayStep)
    step.array, step.__len__.return_value = SimpleNamespace(block_size=block_size), 8
    books = SimpleNamespace(ids=list(range(members)), active=list(range(members)))
    cuts: list[int] = []
    usual = SimpleNamespace(strategy="measured")
    run: Any = SimpleNamespace(step=step, members=books, length=10, left=lambda _: left, settings=usual)
    run.settle = lambda: cuts.append(members)
    rebuild.cut_down(run)
    assert bool(cuts) == cut


def test_who_joins_takes_a_place_where_others_stay_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The array is cut down once nobody comes, not built anew for the few that do."""
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    fresh: list[bool] = []
    rebuilt = rebuild.rebuild
    monkeypatch.setattr(
        rebuild, "rebuild", lambda run, *a: (fresh.append(a[-1].step is not run.step), rebuilt(run, *a))[1]
    )
    given: dict[str, Any] = {"sampler": "random", "pruner": "asha", "seed": 8, "batch_size": 32, "device": "cpu"}
    space = {"lr": LR, "width": [8]}
    made = hfta.Study("mlp", space, "iris", epochs=3, trials=8, slots=6, directory=tmp_path, dtype="float64", **given)
    list(made.run())
    assert fresh
    assert not any(fresh)
    assert made.check(list(made.history.members))["equal"].all()


@pytest.mark.parametrize(("trials", "own"), [(5, {True}), (3, {False})])
def test_members_see_batches_of_their_own_from_the_start_where_others_will_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int, own: set[bool]
) -> None:
    """Steps that take a batch for each member are other ones, which would be recorded once more."""
    seen: list[bool] = []
    train = ArrayStep.train

    def noted(step: ArrayStep, x: Any, *more: Any, **given: Any) -> Any:
        seen.append(isinstance(x, PerMember))
        return train(step, x, *more, **given)

    monkeypatch.setattr(ArrayStep, "train", noted)
    made = study(tmp_path, {"lr": LR, "width": [8]}, trials=trials, pruner="none")
    list(made.run())
    assert set(seen) == own


def test_who_raises_without_training_any_more_is_cut_off() -> None:
    cut: list[int] = []
    usual = SimpleNamespace(deterministic=False)
    run: Any = SimpleNamespace(rows=[0, 2], whole=True, settle=lambda: cut.append(1), settings=usual)
    assert failures.of_nobody(run, MemberError("raised").of(1))
    assert cut == [1]
    assert not failures.of_nobody(run, MemberError("raised").of(2))
    assert not failures.of_nobody(run, ValueError("raised"))
    run.whole = False
    assert not failures.of_nobody(run, MemberError("raised").of(1))
    assert cut == [1]
