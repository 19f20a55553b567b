"""Requests for single members: what they do, what they refuse, and what a run that is resumed knows of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from steering.scripted import TOLERANCE, Script, equal, made, run, states
from steering.twins import net

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import EventError, GridError, HftaError, StudyError
from hfta_nb.records.store import Store
from hfta_nb.study import executors


def test_a_warm_clone_joins_its_source_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    study = made(tmp_path)
    run(study, {5: lambda c: c.clone(1, lr=3e-4)})
    assert states(study) == dict.fromkeys(range(4), ev.COMPLETE)
    [edit] = study.history.edits
    assert (edit.variant, edit.parent, edit.warm, edit.changes) == (3, 1, True, {"lr": 3e-4})
    assert edit.step == 4  # a look for requests before each of three steps, and one before the epoch's end
    assert study.history.members[3].group == study.history.members[1].group
    assert study.history.members[3].config["lr"] == 3e-4
    assert equal(study)


def test_a_clone_has_the_streams_of_its_source_unless_it_is_given_a_seed(tmp_path: Path) -> None:
    study = made(tmp_path)
    run(study, {2: lambda c: (c.clone(1), c.clone(1, seed=5), c.clone(1, data_seed=3))})
    members = study.history.members
    curves = [members[i].curves["val_loss"].values for i in (1, 3, 4, 5)]
    assert curves[0] == pytest.approx(curves[1], abs=TOLERANCE)
    assert curves[0] != pytest.approx(curves[2], abs=1e-6)
    assert curves[0] != pytest.approx(curves[3], abs=1e-6)
    assert equal(study)


@pytest.mark.each
@pytest.mark.parametrize("changes", [{"batch_size": 12}, {"optimizer": "sgd"}, {"p": 0.5}, {"lr_scheduler": "step"}])
def test_a_clone_that_does_not_fuse_goes_to_an_array_of_its_own(tmp_path: Path, changes: dict[str, Any]) -> None:
    study = made(tmp_path)
    run(study, {5: lambda c: c.clone(1, **changes)})
    members = study.history.members
    assert members[3].state == ev.COMPLETE
    assert members[3].group != members[1].group
    assert members[3].epoch == 3
    assert equal(study)


def test_a_cold_clone_begins_anew_and_may_have_another_width(tmp_path: Path) -> None:
    study = made(tmp_path)
    run(study, {5: lambda c: (c.clone(1, warm=False, width=9), c.clone(1, width=9))})
    assert len(study.history.members[3].curves["val_loss"].values) == 3
    [refusal] = study.history.refusals
    assert refusal.request == "Clone"
    assert "0.weight" in refusal.reason
    assert "warm=False" in refusal.reason
    assert len(study.history.members) == 4
    assert equal(study)


@pytest.mark.each("kind")
@pytest.mark.parametrize("kind", ["none", "step", "cosine"])
@pytest.mark.parametrize("serial", [False, True], ids=["fused", "serial"])
def test_values_are_set_in_place(tmp_path: Path, kind: str, serial: bool) -> None:
    options: dict[str, Any] = {"lr_scheduler": kind, "serial": serial}
    options |= {"step_size": 1} if kind == "step" else {}
    study = made(tmp_path, 4, [{"lr": 1e-3}, {"lr": 1e-2}], **options)
    changes = {"gamma": 0.5} if kind == "step" else {"beta1": 0.8}
    run(study, {6: lambda c: c.set(0, lr=2e-2, weight_decay=0.1, max_norm=0.5), 7: lambda c: c.set(0, **changes)})
    assert [e.how for e in study.history.edits] == ["set", "set"]
    assert study.history.members[0].config["lr"] == 2e-2
    assert study.results().loc[0, "weight_decay"] == 0.1
    assert study.results().loc[1, "weight_decay"] == 0.0
    assert equal(study)


def test_an_lr_that_follows_a_metric_is_the_one_that_is_set(tmp_path: Path) -> None:
    """Every epoch is worse than the first, and lr drops each time."""
    how: dict[str, Any] = {"lr_scheduler": "plateau", "plateau_patience": 0, "gamma": 0.5, "monitor": "val_loss"}
    study = made(tmp_path, 6, {"lr": [0.0]}, p=0.0, optimizer="sgd", **how)
    control = Script({14: lambda c: c.set(0, weight_decay=0.1), 18: lambda c: c.set(0, lr=1e-3)})
    list(study.run(control))
    assert [edit.changes for edit in study.history.edits] == [{"weight_decay": 0.1}, {"lr": 1e-3}]
    curve = study.history.members[0].curves["train_loss"].values
    assert study.history.members[0].state == ev.COMPLETE
    assert curve[-1] != curve[0]


def test_a_paused_member_waits_and_goes_on_where_it_was(tmp_path: Path) -> None:
    study = made(tmp_path)
    events = run(study, {6: lambda c: c.pause(2), 9: lambda c: c.resume(2)})
    changed = [e for e in events if isinstance(e, ev.MemberChanged)]
    assert [e.state for e in changed if e.variant == 2] == [ev.RUNNING, ev.PAUSED, ev.WAITING, ev.RUNNING, ev.COMPLETE]
    assert study.history.members[2].curves["val_loss"].epochs == [1, 2, 3]
    assert study.history.members[2].group != study.history.members[0].group
    assert equal(study)
    assert study.check([0, 1, 2])["equal"].all()


def test_a_run_waits_for_its_paused_members(tmp_path: Path) -> None:
    study = made(tmp_path, 2)
    control = Script({3: lambda c: c.pause(2)})
    for event in study.run(control):
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            assert "only paused members are left" in event.reason
            assert states(study) == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.PAUSED}
            control.resume(2)
    assert states(study)[2] == ev.COMPLETE
    assert study.history.state == ev.COMPLETE
    assert equal(study)


def test_a_paused_member_outlives_a_stopped_run(tmp_path: Path) -> None:
    """Its weights and what it did are in the checkpoint."""
    study = made(tmp_path, 3)
    run(study, {6: lambda c: c.pause(2), 8: lambda c: c.stop()})
    again = hfta.Study.load(tmp_path, family=net)
    assert states(again)[2] == ev.PAUSED
    run(again, {1: lambda c: c.resume(2)}, resume=True)
    assert states(again) == dict.fromkeys(range(3), ev.COMPLETE)
    assert equal(again)


def test_a_clone_of_a_paused_member(tmp_path: Path) -> None:
    study = made(tmp_path)
    run(study, {6: lambda c: c.pause(2), 8: lambda c: (c.clone(2, lr=1e-4), c.stop(2))})
    assert states(study) == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.STOPPED, 3: ev.COMPLETE}
    assert equal(study)


def test_a_member_that_waits_is_paused_set_stopped_and_deleted(tmp_path: Path) -> None:
    """Two arrays: what is asked of the second while the first trains."""
    grid = [{"lr": 1e-3, "width": 6}, *({"lr": lr, "width": 8} for lr in (1e-3, 2e-3, 3e-3, 4e-3))]
    study = made(tmp_path, 2, grid, padding="never")
    script = {3: lambda c: (c.pause(1), c.set(2, lr=5e-3), c.stop(3), c.delete(4)), 6: lambda c: c.resume(1)}
    run(study, script)
    assert states(study) == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.COMPLETE, 3: ev.STOPPED, 4: ev.DELETED}
    assert study.history.members[2].config["lr"] == 5e-3
    assert equal(study)


def test_a_deleted_member_is_not_in_the_results(tmp_path: Path) -> None:
    study = made(tmp_path, 2)
    run(study, {5: lambda c: c.delete(1), 6: lambda c: c.pause(0), 7: lambda c: c.delete(0)})
    assert states(study) == {0: ev.DELETED, 1: ev.DELETED, 2: ev.COMPLETE}
    assert list(study.results().index) == [2]
    assert study.best().variant.id == 2
    assert list(hfta.Study.load(tmp_path, family=net).results().index) == [2]


@pytest.mark.only(kind="cosine")
@pytest.mark.parametrize("kind", ["none", "cosine"])
def test_all_train_longer(tmp_path: Path, kind: str) -> None:
    """Those that train, those that have trained all their epochs, and those that wait."""
    grid = [{"lr": 1e-3, "width": 6}, {"lr": 1e-2, "width": 6}, {"lr": 1e-2, "width": 8}, {"lr": 1e-2, "width": 10}]
    study = made(tmp_path, 2, grid, padding="never", lr_scheduler=kind)
    run(study, {10: lambda c: c.extend(1)})
    assert study.epochs == 3
    assert [m.epoch for m in study.history.members.values()] == [3, 3, 3, 3]
    assert states(study) == dict.fromkeys(range(4), ev.COMPLETE)
    assert equal(study)
    assert hfta.Study.load(tmp_path, family=net).epochs == 3


@pytest.mark.only(kind="cosine")
@pytest.mark.parametrize("kind", ["none", "cosine"])
def test_one_trains_longer(tmp_path: Path, kind: str) -> None:
    study = made(tmp_path, 2, lr_scheduler=kind)
    run(study, {4: lambda c: c.extend(2, variant=1), 6: lambda c: c.clone(1, lr=1e-3)})
    assert [m.epoch for m in study.history.members.values()] == [2, 4, 2, 4]
    assert study.check([1])["epochs"].item() == (4 if kind == "none" else 1)
    assert study.check([1])["equal"].all()
    assert states(study) == dict.fromkeys(range(4), ev.COMPLETE)
    assert equal(study)


def test_one_that_has_not_begun_trains_longer(tmp_path: Path) -> None:
    """Its lr schedule spans all of it; a cold clone of it trains as long as the others."""
    grid = [{"lr": 1e-2, "width": 6}, {"lr": 1e-2, "width": 8}, {"lr": 1e-3, "width": 8}]
    study = made(tmp_path, 2, grid, padding="never", lr_scheduler="cosine")
    run(study, {2: lambda c: c.extend(2, variant=1), 4: lambda c: c.clone(1, warm=False)})
    assert [m.epoch for m in study.history.members.values()] == [2, 4, 2, 2]
    assert equal(study)


def test_everything_while_the_whole_run_is_paused(tmp_path: Path) -> None:
    study = made(tmp_path, 2)
    control = Script({4: lambda c: c.pause()})
    for event in study.run(control):
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED and len(study.history.edits) == 0:
            control.set(0, beta1=0.8)
            control.clone(1, lr=1e-4)
            control.pause(2)
            control.resume(2)
            control.resume()
    assert states(study) == dict.fromkeys(range(4), ev.COMPLETE)
    assert equal(study)


def test_what_cannot_be_answered_raises_where_it_is_asked(tmp_path: Path) -> None:
    study, control = made(tmp_path, 3), hfta.Control()
    wrong: list[tuple[type[HftaError], Callable[[], None], str]] = [
        (StudyError, lambda: control.pause(9), "no such variant"),
        (StudyError, lambda: control.set(2, lr=1e-3), "has ended"),
        (StudyError, lambda: control.clone(2), "has ended"),
        (StudyError, lambda: control.set(1, width=8), "can't be changed while it trains"),
        (StudyError, lambda: control.set(1, optimizer="sgd"), "clone the member"),
        (GridError, lambda: control.clone(1, widht=8), "did you mean width"),
        (GridError, lambda: control.set(1, lr="fast"), "not a number"),
        (GridError, lambda: control.clone(1, lr=-1.0), "out of bounds"),
        (EventError, lambda: control.set(1, lr=object()), "not a value of an axis"),
        (EventError, lambda: control.set(1), "changes nothing"),
        (EventError, lambda: control.pause("all"), "not a variant's number"),  # type: ignore[arg-type]
        (EventError, lambda: control.extend(0), "not a number of epochs"),
        (EventError, lambda: control.clone(1, warm=3), "not True or False"),  # type: ignore[arg-type]
        (EventError, lambda: control.pin(1, "no"), "not True or False"),  # type: ignore[arg-type]
    ]
    epochs = 0
    for event in study.run(control):
        if isinstance(event, ev.EpochDone):
            epochs += 1
            if epochs == 1:
                control.stop(2)
            if epochs == 2:
                for kind, ask, words in wrong:
                    with pytest.raises(kind, match=words):
                        ask()
    assert not study.history.edits
    assert not study.history.refusals
    assert len(study.history.members) == 3


def test_a_handle_raises_what_its_run_would_refuse(tmp_path: Path) -> None:
    handle = executors.start(made(tmp_path, 1), kind="inline")
    with pytest.raises(StudyError, match="no such variant"):
        handle.control.pause(9)
    with pytest.raises(GridError, match="not a number"):
        handle.control.clone(0, lr="fast")
    assert handle.wait(60.0) == ev.COMPLETE
    with pytest.raises(StudyError, match="has ended"):
        handle.control.pause(0)


def test_a_run_that_has_ended_takes_no_requests_until_the_next_one(tmp_path: Path) -> None:
    study, control = made(tmp_path, epochs=1), hfta.Control()
    wrong: list[tuple[Callable[[], None], str]] = [
        (lambda: control.set(0, lr=1e-3), r"set #0: the run has ended; add such a variant with study\.add"),
        (lambda: control.clone(0, lr=1e-3), "clone #0: the run has ended"),
        (lambda: control.extend(2), r"extend: the run has ended; train on with study\.run\(epochs="),
        (lambda: control.add({"lr": 0.1}), r"add: the run has ended; call study\.add"),
        (lambda: control.delete(0), "delete #0: the run has ended"),
        (control.pause, "pause: the run has ended"),
    ]
    for event in study.run(control):
        if isinstance(event, ev.RunChanged) and event.state == ev.COMPLETE:
            with pytest.raises(StudyError, match="extend: the run has ended"):
                control.extend(1)
    for ask, words in wrong:
        with pytest.raises(StudyError, match=words):
            ask()
    control.stop()  # as it is: Ctrl-C may come late
    assert control.poll() == [ev.Stop()]
    for event in study.run(control, epochs=4):  # which reads the mailbox again
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            control.set(0, lr=1e-4)
    assert [edit.changes for edit in study.history.edits] == [{"lr": 1e-4}]


def test_a_handle_of_a_run_that_has_ended_takes_no_requests(tmp_path: Path) -> None:
    handle = executors.start(made(tmp_path, epochs=1), kind="inline")
    handle.wait()
    with pytest.raises(StudyError, match="clone #1: the run has ended"):
        handle.control.clone(1, lr=1e-4)
    handle.control.stop()


def test_what_is_known_between_two_steps_only_is_told(tmp_path: Path) -> None:
    study = made(tmp_path, 2)
    asked = [
        ev.Pause(9, "a"),
        ev.Resume(0, "b"),
        ev.Set(0, {"width": 3}, "c"),
        ev.Set(0, {"warmup_steps": 3}, "d"),
        ev.Clone(9, {}, True, "e"),
        ev.Extend(1, 9, "f"),
    ]
    run(study, {3: lambda c: [c.put(request) for request in asked]})
    assert [r.request for r in study.history.refusals] == ["Pause", "Resume", "Set", "Set", "Clone", "Extend"]
    assert all(r.reason for r in study.history.refusals)
    assert not study.history.edits
    assert equal(study)


def test_a_request_that_arrives_twice_has_its_effect_once(tmp_path: Path) -> None:
    """A worker that takes over a run is sent all requests again."""
    study = made(tmp_path, 2)
    requests = [ev.Clone(0, {"lr": 1e-4}, True, "x"), ev.Extend(1, None, "y")]
    run(study, {2: lambda c: [c.put(r) for r in requests * 2], 4: lambda c: [c.put(r) for r in requests]})
    assert len(study.history.members) == 4
    assert study.epochs == 3


@pytest.mark.parametrize("paused", [False, True])
def test_a_clone_that_no_checkpoint_has_is_made_when_the_run_goes_on(
    tmp_path: Path, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after the study knows of the clone, and before there is a checkpoint with it."""
    study, ends = made(tmp_path), [SystemExit()]
    write = Store.write_checkpoint

    def failing(store: Store, *args: Any) -> Path:
        if study.added and ends:
            raise ends.pop()
        return write(store, *args)

    monkeypatch.setattr(Store, "write_checkpoint", failing)
    first: Any = (lambda c: c.pause(2)) if paused else (lambda c: c.set(2, beta1=0.8))
    with pytest.raises(SystemExit):
        run(study, {3: first, 5: lambda c: c.clone(1, lr=1e-4)})
    rest = hfta.Study.load(tmp_path, family=net)
    run(rest, {4: lambda c: c.resume(2)} if paused else {}, resume=True)
    assert states(rest) == dict.fromkeys(range(4), ev.COMPLETE)
    clone = rest.history.edits[-1]
    assert (clone.variant, clone.parent, clone.warm, clone.step) == (3, 1, True, 3)
    assert equal(rest)


@pytest.mark.long
def test_lineage_is_the_same_after_loading_and_resuming(tmp_path: Path) -> None:
    script = {
        3: lambda c: c.clone(1, lr=3e-4),
        5: lambda c: (c.set(0, lr=2e-3), c.pause(2)),
        7: lambda c: (c.clone(3, optimizer="sgd", lr=0.1), c.extend(1)),
    }
    whole = made(tmp_path / "whole", 3)
    run(whole, {**script, 9: lambda c: c.resume(2)})
    cut = made(tmp_path / "cut", 3)
    run(cut, {**script, 9: lambda c: (c.resume(2), c.stop())})
    rest = hfta.Study.load(tmp_path / "cut", family=net)
    assert rest.lineage().equals(cut.lineage())
    list(rest.run(resume=True))
    assert rest.lineage().equals(whole.lineage())
    for id, member in whole.history.members.items():
        curve = rest.history.members[id].curves["val_loss"]
        assert curve.epochs == member.curves["val_loss"].epochs
        assert curve.values == pytest.approx(member.curves["val_loss"].values, abs=TOLERANCE)
    assert equal(rest)
    table = rest.lineage()
    assert list(table.columns) == ["member", "how", "parent", "start", "epoch", "step", "changes", "reason"]
    assert list(table["how"][:2]) == ["cloned", "set"]


def test_a_check_ends_where_a_member_was_changed(tmp_path: Path) -> None:
    study = made(tmp_path, 3)
    run(study, {2: lambda c: c.clone(1, lr=1e-4), 10: lambda c: c.set(0, lr=1e-2), 3: lambda c: c.set(1, lr=1e-4)})
    assert study.check([0])["epochs"].item() == 2
    with pytest.raises(StudyError, match="weights of its source"):
        study.check([3])
    with pytest.raises(StudyError, match="in its first epoch"):
        study.check([1])


def test_clones_are_in_the_results_and_in_the_code(tmp_path: Path) -> None:
    study = made(tmp_path, 2)
    run(study, {2: lambda c: (c.clone(1, lr=1e-4), c.clone(0, warm=False, lr=5e-3))})
    assert set(study.results().index) == {0, 1, 2, 3, 4}
    assert "study.lineage()" in study.to_code()
    assert study.member(3).module() is not None
    notes = study.store.notes("variant")
    assert [notes[f"{i:06d}"]["origin"] for i in (0, 3, 4)] == ["grid", "cloned warm from #1", "cloned cold from #0"]
