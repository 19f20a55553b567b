"""A pool of workers trains what one process trains: the same numbers, whatever workers do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.train import schedule
from hfta_nb.workers.executor_table import EXECUTORS, Named
from hfta_nb.workers.pools import Terms, executor_of, worker_pool
from hfta_nb.workers.pools.reports import Report, Saved, Told
from tests.executors.baton import Baton, Runner
from tests.frames import steady

OPTIONS: dict[str, Any] = {"device": "cpu", "padding": "never", "deterministic": True, "dropout": 0.2}
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
        return worker.orders[-1].pending[0].group.index == 1

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
        if isinstance(report, Saved) and report.pending:
            saved.append(1)
            return False
        return bool(saved) and isinstance(report, Told) and bool(saved.pop())

    study = make(tmp_path)
    events = list(study.run(executor=Baton(terms=Terms(restarts=1, checkpoint_every_s=0.0), dies=dies)))
    assert [e.phase for e in events if isinstance(e, ev.PhaseChanged)].count("starting again") > 6
    same(study, inline)


def test_a_silent_worker_is_replaced(tmp_path: Path, inline: hfta.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(worker_pool.time, "monotonic", lambda: now[0])
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
    study = hfta.Study(family, GRID, "iris", epochs=1, directory=tmp_path, device="cpu", padding="never")
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
        (("inline", 2), "is for processes of this machine or actors of Ray alone"),
        (("processes", 0), "not a positive whole number"),
        (("processes", None, "auto"), "is for actors of Ray alone"),
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


@pytest.mark.parametrize("named", EXECUTORS.values(), ids=EXECUTORS)
def test_executors_with_a_name_are_made_with_what_they_take(named: Named) -> None:
    made_by = getattr(importlib.import_module(named.module), named.made_by)
    assert {"terms", *named.takes} <= {field.name for field in fields(made_by)}
    assert all(callable(getattr(made_by, method)) for method in ("reach", "open"))


def test_ray_that_is_not_installed_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from hfta_nb.workers.pools import on_ray

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
