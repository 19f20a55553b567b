"""A crew of workers trains what one process trains: the same numbers, whatever workers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.crews import Terms, crew, executor_of
from hfta_nb.crews.reports import Report, Saved, Told
from hfta_nb.errors import WorkerError
from hfta_nb.train import schedule
from tests.executors.baton import Baton, Runner
from tests.frames import steady

OPTIONS: dict[str, Any] = {"device": "cpu", "across": "never", "deterministic": True, "dropout": 0.2}
GRID = {"lr": [1e-3, 1e-2], "width": [4, 6, 8]}
OFTEN = Terms(checkpoint_every_s=0.0)


def make(place: Path, epochs: int = 3, grid: Any = GRID, **more: Any) -> hfta.Study:
    return hfta.Study("mlp", grid, "iris", directory=place, epochs=epochs, **{**OPTIONS, **more})


def same(one: hfta.Study, other: hfta.Study) -> None:
    """To the last bit: the table, the curves, the best weights."""
    pd.testing.assert_frame_equal(steady(one.results()), steady(other.results()), rtol=0, atol=0)
    for id, member in one.history.members.items():
        for name, curve in member.curves.items():
            assert other.history.members[id].curves[name].values == curve.values
        for name, value in one.store.read_weights(id).items():
            assert torch.equal(value, other.store.read_weights(id)[name])


def test_two_workers_give_the_bits_of_one_process(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)
    events = list(study.run(executor=Baton()))
    same(study, inline)
    same(hfta.Study.load(tmp_path), inline)
    assert study.best().module().state_dict().keys() == inline.best().module().state_dict().keys()
    started = [e for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]
    assert [e.group for e in started] in ([1, 2, 0], [2, 1, 0])  # the narrowest takes least
    assert {e.detail for e in started} == {"on runner 0", "on runner 1"}  # the last takes a free one
    assert isinstance(events[-1], ev.RunChanged)
    assert events[-1].state == ev.COMPLETE
    checkpoints = [e for e in events if isinstance(e, ev.CheckpointSaved)]
    assert len(checkpoints) >= 3
    assert all(e.path for e in checkpoints)


def test_groups_begin_in_the_order_of_measured_rates(tmp_path: Path) -> None:
    rates = {"array 0": [10.0], "array 1": [500.0], "array 2": [90.0]}
    events = list(make(tmp_path, 1).run(executor=Baton(1, Terms(rates=rates))))
    started = [e.group for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]
    assert started == [0, 2, 1]


# Workers that die.


@dataclass
class After:
    """Dies in place of report number `count`, once."""

    count: int

    def __call__(self, worker: Runner, report: Report) -> bool:
        self.count -= 1
        return self.count == 0


@pytest.mark.parametrize("count", [4, 16, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 9, 30))])
def test_a_worker_that_dies_changes_nothing(tmp_path: Path, inline: hfta.Study, count: int) -> None:
    study = make(tmp_path)
    fault = After(count)
    events = list(study.run(executor=Baton(terms=OFTEN, dies=fault)))
    assert fault.count <= 0
    assert [e.phase for e in events if isinstance(e, ev.PhaseChanged)].count("starting again") == 1
    same(study, inline)
    same(hfta.Study.load(tmp_path), inline)


def test_a_group_goes_on_from_its_last_checkpoint(
    tmp_path: Path, inline: hfta.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "CHECKPOINT_SHARE", 1e9)  # else one that took long delays the next
    study = make(tmp_path)
    seen: list[int] = []

    def dies(worker: Runner, report: Report) -> bool:
        done = isinstance(report, Told) and isinstance(report.event, ev.EpochDone)
        if not done or report.event.epoch != 3 or seen:  # type: ignore[union-attr]
            return False
        seen.append(report.event.group)  # type: ignore[union-attr]
        return True

    executor = Baton(terms=OFTEN, dies=dies)
    list(study.run(executor=executor))
    again = [e for e in _events(study) if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert "its last checkpoint" in again[0].detail
    epochs = [e.epoch for e in _events(study) if isinstance(e, ev.EpochDone) and e.group == seen[0]]
    assert epochs == [1, 2, 3]  # two were not trained again
    same(study, inline)


def _events(study: hfta.Study) -> list[ev.Event]:
    return [event for event, _ in study.store.events()]


def test_a_group_whose_workers_die_again_and_again_fails_alone(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)

    def dies(worker: Runner, report: Report) -> bool:
        return worker.orders[-1].todo[0].group.index == 1

    list(study.run(executor=Baton(terms=Terms(restarts=2), dies=dies)))
    failed = [m for m in study.history.members.values() if m.group == 1]
    assert {m.state for m in failed} == {ev.FAILED}
    assert "died of a test, 3 times without a checkpoint" in failed[0].reason
    assert study.history.state == ev.COMPLETE
    others = [m.id for m in study.history.members.values() if m.group != 1]
    wanted = inline.results().loc[others, "val_loss"]
    assert (study.results().loc[others, "val_loss"] == wanted).all()


def test_a_run_in_which_all_workers_die_has_failed(tmp_path: Path) -> None:
    study = make(tmp_path)
    list(study.run(executor=Baton(terms=Terms(restarts=0), dies=lambda *_: True)))
    assert study.history.state == ev.FAILED
    assert study.history.count(ev.FAILED) == 6


def test_deaths_with_checkpoints_in_between_are_not_counted(tmp_path: Path, inline: hfta.Study) -> None:
    saved: list[int] = []

    def dies(worker: Runner, report: Report) -> bool:
        if isinstance(report, Saved) and report.todo:
            saved.append(1)
            return False
        return bool(saved) and isinstance(report, Told) and bool(saved.pop())

    study = make(tmp_path)
    events = list(study.run(executor=Baton(terms=Terms(restarts=1, checkpoint_every_s=0.0), dies=dies)))
    assert [e.phase for e in events if isinstance(e, ev.PhaseChanged)].count("starting again") > 6
    same(study, inline)


def test_a_silent_worker_is_replaced(tmp_path: Path, inline: hfta.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(crew.time, "monotonic", lambda: now[0])
    mute: list[Runner] = []
    step = Runner.step

    def stepped(self: Runner) -> list[Report]:
        if mute[:1] == [self]:
            now[0] += 50.0
            return []
        return step(self)

    def falls_silent(worker: Runner, report: Report) -> bool:
        if not mute and isinstance(report, Told) and isinstance(report.event, ev.EpochDone):
            mute.append(worker)
        return False

    monkeypatch.setattr(Runner, "step", stepped)
    study = make(tmp_path)
    events = list(study.run(executor=Baton(terms=Terms(silent_s=120.0), dies=falls_silent)))
    again = [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(again) == 1
    assert f"{mute[0].name} was silent for 120 s" in again[0]
    same(study, inline)


# Requests.


def asked(study: hfta.Study, ask: Callable[[hfta.Control, ev.Event], None], **options: Any) -> list[ev.Event]:
    """The events of a run in which something is asked for."""
    control, found = hfta.Control(), []
    for event in study.run(control, **{"executor": Baton(terms=OFTEN), **options}):
        found.append(event)
        ask(control, event)
    return found


def at_epoch(epoch: int, ask: Callable[[hfta.Control], None]) -> Callable[[hfta.Control, ev.Event], None]:
    """Ask once, when the first group is so far."""
    done: list[int] = []

    def heard(control: hfta.Control, event: ev.Event) -> None:
        if isinstance(event, ev.EpochDone) and event.epoch == epoch and not done:
            done.append(epoch)
            ask(control)

    return heard


@pytest.mark.parametrize("then", ["inline", "crew"])
def test_a_run_that_is_stopped_goes_on_anywhere(tmp_path: Path, inline: hfta.Study, then: str) -> None:
    study = make(tmp_path)
    asked(study, at_epoch(2, hfta.Control.stop))
    assert study.history.state == ev.STOPPED
    assert study.history.count(ev.STOPPED) >= 4  # one group may have been done
    assert study.store.has_checkpoint
    again = hfta.Study.load(tmp_path)
    list(again.run(resume=True, **({"executor": Baton()} if then == "crew" else {})))
    same(again, inline)


def test_a_run_of_one_process_goes_on_with_a_crew(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)
    asked(study, at_epoch(2, hfta.Control.stop), executor="inline")
    list(study.run(resume=True, executor=Baton()))
    same(study, inline)


def test_a_member_is_stopped_by_the_worker_that_has_it(tmp_path: Path) -> None:
    study = make(tmp_path, 4)
    first: list[int] = []

    def stop(control: hfta.Control) -> None:
        first.append(next(m.id for m in study.history.members.values() if m.epoch))
        control.stop(first[0])
        control.stop(0)  # of the narrowest, which waits

    asked(study, at_epoch(1, stop))
    states = {m.id: (m.state, m.epoch, m.reason) for m in study.history.members.values()}
    assert states.pop(first[0])[0] == ev.STOPPED
    assert states.pop(0) == (ev.STOPPED, 0, "stopped before it started")
    assert {(state, epoch) for state, epoch, _ in states.values()} == {(ev.COMPLETE, 4)}


def test_a_member_that_was_stopped_stays_so_when_its_worker_dies(tmp_path: Path) -> None:
    stopped: list[int] = []

    def dies(worker: Runner, report: Report) -> bool:
        told = isinstance(report, Told) and isinstance(report.event, ev.MemberChanged)
        if not told or report.event.state != ev.STOPPED or stopped:  # type: ignore[union-attr]
            return False
        stopped.append(report.event.variant)  # type: ignore[union-attr]
        return True

    study = make(tmp_path)
    asked(study, at_epoch(1, lambda control: control.stop(5)), executor=Baton(dies=dies))
    assert stopped == [5]
    assert study.history.members[5].state == ev.STOPPED
    assert study.history.count(ev.COMPLETE) == 5


def test_a_pause_holds_all_workers(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)
    paused: list[ev.Event] = []

    def ask(control: hfta.Control, event: ev.Event) -> None:
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            paused.append(event)
            assert study.store.has_checkpoint
        if paused and isinstance(event, ev.Heartbeat) and len(paused) == 1:
            paused.append(event)
            control.resume()

    wanted = at_epoch(1, hfta.Control.pause)

    def both(control: hfta.Control, event: ev.Event) -> None:
        wanted(control, event)
        ask(control, event)

    events = asked(study, both)
    states = [e.state for e in events if isinstance(e, ev.RunChanged)]
    assert states == [ev.PAUSED, ev.RUNNING, ev.COMPLETE]
    begin = next(i for i, e in enumerate(events) if isinstance(e, ev.RunChanged))
    end = next(i for i, e in enumerate(events) if isinstance(e, ev.RunChanged) and e.state == ev.RUNNING)
    assert {type(e) for e in events[begin + 1 : end]} <= {ev.Heartbeat, ev.DeviceSampled}
    same(study, inline)


def test_a_paused_run_can_be_stopped(tmp_path: Path) -> None:
    study = make(tmp_path)
    wanted = at_epoch(1, hfta.Control.pause)

    def ask(control: hfta.Control, event: ev.Event) -> None:
        wanted(control, event)
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            control.stop()

    asked(study, ask)
    assert study.history.state == ev.STOPPED


def test_variants_that_are_added_train_as_well(tmp_path: Path) -> None:
    study = make(tmp_path, 2)
    asked(study, at_epoch(1, lambda control: control.add([{"lr": 1e-3, "width": 12}, {"lr": 1e-3, "width": 4}])))
    alone = make(tmp_path.parent / f"{tmp_path.name}_alone", 2, {"lr": [1e-3], "width": [12, 4]})
    list(alone.run())
    added = [study.history.members[id] for id in (6, 7)]
    assert [m.state for m in added] == [ev.COMPLETE] * 2
    for one, other in zip(added, alone.history.members.values(), strict=True):
        assert one.curves["val_loss"].values == other.curves["val_loss"].values
    numbers = [g.index for g in study.groups()]
    assert len(set(numbers)) == len(numbers)


def test_more_epochs_after_the_end(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path, 2)
    list(study.run(executor=Baton()))
    list(study.run(epochs=3, executor=Baton(3)))
    same(study, inline)


# Flotillas.


def test_a_flotilla_that_has_shrunk_is_planned_anew(tmp_path: Path, inline: hfta.Study) -> None:
    """Three groups on two workers; when the first is done, the other is checkpointed and starts anew with the third."""
    study = make(tmp_path)
    # The reports of one worker come first, so that its group ends while the other is on its way.
    slow = [False]
    step = Runner.step

    def stepped(self: Runner) -> list[Report]:
        return [] if self.name == "runner 1" and slow[0] and not self.requests else step(self)

    def ask(control: hfta.Control, event: ev.Event) -> None:
        slow[0] = slow[0] or (isinstance(event, ev.EpochDone) and event.epoch == 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "step", stepped)
        events = asked(study, ask, executor=Baton(terms=Terms(paradigm="global", alpha=0.8)))
    waiting = [e for e in events if isinstance(e, ev.MemberChanged) and "next flotilla" in e.reason]
    assert len(waiting) == 2  # both members of a group
    started = [e.group for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]
    assert len(started) == 4
    assert len(set(started)) == 3
    same(study, inline)


# Members' own code.


def test_a_member_that_raises_fails_alone(tmp_path: Path) -> None:
    class Picky(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.out_features == 6:
                raise ArithmeticError("no such width")
            return super().forward(x)

    def build(width: int = 4, in_features: int = 1, out_features: int = 1) -> nn.Module:
        return nn.Sequential(Picky(in_features, width), nn.ReLU(), nn.Linear(width, out_features))

    family = hfta.family(build, name="picky")
    study = hfta.Study(family, GRID, "iris", epochs=1, directory=tmp_path, device="cpu", across="never")
    list(study.run(executor=Baton()))
    states = {m.config["width"]: (m.state, m.reason) for m in study.history.members.values()}
    assert states[4] == states[8] == (ev.COMPLETE, "")
    assert states[6][0] == ev.FAILED
    assert "no such width" in states[6][1]
    assert study.history.state == ev.COMPLETE


def test_an_error_of_all_members_is_raised(tmp_path: Path) -> None:
    def broken(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("never a loss")

    study = make(tmp_path, 1, loss=broken)
    with pytest.raises(Exception, match="never a loss"):
        list(study.run(executor=Baton()))
    assert study.history.state == ev.FAILED
    assert study.history.count(ev.FAILED) == 6


# A search.


def test_a_search_prunes_members_of_all_workers(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"lr": [1e-3, 1e-2, 1e-1], "width": [4, 8]}
    options = {"trials": 8, "slots": 4, "sampler": "random", "pruner": "median", "seed": 3}
    study = make(tmp_path, 4, space, **options)
    list(study.run(executor=Baton(terms=OFTEN, dies=After(40))))
    assert study.history.state == ev.COMPLETE
    assert len(study.optuna.trials) == 8
    assert all(trial.state.is_finished() for trial in study.optuna.trials)
    assert {m.state for m in study.history.members.values()} <= {ev.COMPLETE, ev.PRUNED}


# Arguments.


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("dask",), "unknown executor"),
        ((3,), "not an executor"),
        (("inline", 2), "there are none in this process"),
        (("processes", 0), "not a positive whole number"),
        (("processes", None, "auto"), "for Ray alone"),
        ((Baton(), 2), "the executor says so itself"),
    ],
)
def test_executors_that_can_t_be(tmp_path: Path, given: tuple[Any, ...], what: str) -> None:
    with pytest.raises(WorkerError, match=what):
        executor_of(*given)
    study = make(tmp_path, 1)
    with pytest.raises(WorkerError, match=what):
        study.run(**dict(zip(("executor", "workers", "address"), given, strict=False)))
    assert not study.store.exists


def test_ray_that_is_not_installed_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from hfta_nb.crews import on_ray

    monkeypatch.setattr(on_ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match=r'pip install "hfta_nb\[ray\]"'):
        executor_of("ray")


def test_iterators_are_closed_with_their_workers(tmp_path: Path) -> None:
    """Leaving the loop stops the run; all workers are gone."""
    study = make(tmp_path)
    made: list[Runner] = []

    def noted(worker: Runner, report: Report) -> bool:
        made.append(worker)
        return False

    run: Iterator[ev.Event] = study.run(executor=Baton(dies=noted))
    for event in run:
        if isinstance(event, ev.EpochDone):
            break
    run.close()  # type: ignore[attr-defined]
    assert study.history.state == ev.STOPPED
    assert made
    assert all(worker.thread is None for worker in made)
