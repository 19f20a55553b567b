"""The estimate of the remaining time: none before training was timed without trials."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.study.fitting import left_of
from hfta_nb.train import clock as clocks
from hfta_nb.train.clock import Clock
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.pending_group import End
from hfta_nb.train.trainer import PendingGroup


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the machine, moved by hand."""
    made = SimpleNamespace(s=0.0)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: made.s))
    return made


def window(clock: Clock, now: SimpleNamespace, seconds: float, work: float, tried: bool = False) -> float:
    """Some steps, and what is said after them of 100 steps of a member."""
    now.s += seconds
    clock.did(work, tried)
    clock.tick()
    return clock.remaining_s(100.0)


def test_what_is_tried_or_recorded_says_nothing_about_the_time_left(now: SimpleNamespace) -> None:
    clock = Clock(since=now.s)
    assert math.isnan(window(clock, now, 3.0, 2, tried=True))
    assert math.isnan(window(clock, now, 9.0, 2, tried=True))
    assert math.isnan(window(clock, now, 5.0, 2))  # steps are recorded
    assert math.isnan(window(clock, now, 0.5, 10))  # too short to be told from noise
    assert window(clock, now, 0.5, 10) == pytest.approx(100 * 1.0 / 20)
    assert clock.elapsed_s == 18.0
    assert clock.work_done == 26
    # Another array tries again: what was found of the first one stands until it has settled.
    clock.cool()
    assert window(clock, now, 7.0, 2, tried=True) == pytest.approx(5.0)
    assert window(clock, now, 7.0, 2) == pytest.approx(5.0)
    assert window(clock, now, 3.0, 20) == pytest.approx(100 * 4.0 / 40)
    assert clock.remaining_s(0.0) == 0.0
    assert math.isnan(clock.remaining_s(math.nan))


def test_a_pause_is_left_out(now: SimpleNamespace) -> None:
    clock = Clock(since=now.s)
    window(clock, now, 1.0, 10)
    assert window(clock, now, 1.0, 10) == pytest.approx(10.0)
    now.s += 1000
    clock.skip()
    assert window(clock, now, 1.0, 10) == pytest.approx(10.0)
    assert clock.elapsed_s == 3.0


def test_work_is_that_of_members_that_are_still_to_train() -> None:
    def group(index: int, *ids: int) -> Any:
        return SimpleNamespace(index=index, ids=ids)

    waiting = deque(
        [
            PendingGroup(group(1, 3, 4), run={"ids": [4], "steps": 30}),
            PendingGroup(group(2, 5, 6, 7), end=End(2, "2", 6, [5, 7])),
            PendingGroup(group(3, 8, 9, 10)),
        ]
    )
    trainer = SimpleNamespace(waiting=waiting, early_stops={9}, batches=lambda g: 10, training=[])
    trainer.settings = SimpleNamespace(epochs=8)
    active = [SimpleNamespace(id=0, first_step=0), SimpleNamespace(id=2, first_step=10)]  # it has joined later
    run: Any = SimpleNamespace(
        trainer=trainer, group=group(0, 0, 1, 2), members=SimpleNamespace(active=active), steps=20, built=True
    )
    run.work = lambda: Progress.work(run)
    assert Progress.work_left(run) == 60 + 70 + 1 * 50 + 2 * 20 + 2 * 80
    beside = SimpleNamespace(work=lambda: [(group(4, 11, 12), 1, 21)])  # it takes turns with this one
    trainer.training = [run, beside]
    assert Progress.work_left(run) == 60 + 70 + 1 * 50 + 2 * 20 + 2 * 80 + 1 * 59
    trainer.batches = lambda g: None
    assert math.isnan(Progress.work_left(run))


def test_a_run_estimates_until_its_speed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps try block sizes, and time the plain module beside them: an hour was told of half a minute."""
    monkeypatch.setattr(clocks, "SETTLED_S", 0.0)
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2], "width": [4]}, "iris", epochs=60, directory=tmp_path, device="cpu")
    known, told = False, []
    for event in study.run():
        known |= isinstance(event, ev.SpeedMeasured)
        if isinstance(event, ev.StepsDone):
            assert known or math.isnan(event.remaining_s)
            told.append(event.remaining_s)
    assert known
    assert math.isnan(told[0])
    assert math.isfinite(told[-2])
    assert told[-1] == 0.0


@pytest.mark.parametrize(
    ("remaining_s", "state", "said"),
    [
        (math.nan, ev.RUNNING, "estimating"),
        (83.2, ev.RUNNING, "0:01:23 left"),
        (83.2, ev.STOPPED, ""),
        (None, ev.RUNNING, ""),
    ],
)
def test_the_bar_of_fit_says_how_long_it_takes(remaining_s: float | None, state: str, said: str) -> None:
    progress = None if remaining_s is None else SimpleNamespace(remaining_s=remaining_s)
    history: Any = SimpleNamespace(state=state, progress=progress)
    assert left_of(history) == said
