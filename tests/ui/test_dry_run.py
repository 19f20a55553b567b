"""Messages of the Workbench about a forward that was tried after Plan in the worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from ui.bench import Make, Runs, press, shown, steps

from hfta_nb import events as ev
from hfta_nb.study import Study, executors
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.dry_run import DryRun, Tried, key_of, said

WRONG = ev.ForwardTried(1.0, 1, "RuntimeError: <b>no</b>", "model.py", 12, "forward", "x = a < b", "Traceback <x>")


class Loop(Later):
    """A kernel's thread of which the test says when it is free."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    @property
    def has_loop(self) -> bool:
        return True

    def after(self, delay_s: float, work: Any) -> None:
        self.waiting.append(work)

    def turn(self) -> None:
        due, self.waiting = self.waiting, []
        for work in due:
            work()


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "warm", lambda: True)


@pytest.fixture
def told() -> list[Tried]:
    return []


def study(**more: Any) -> Study:
    grid = more.pop("grid", {"width": [4, 8]})
    return Study("mlp", grid, "iris", epochs=1, device="cpu", **more)


def test_it_is_tried_once_for_what_decides_about_the_forward(runs: Runs, told: list[Tried]) -> None:
    loop = Loop()
    trial = DryRun("worker", loop, told.append)
    trial.plan(study())
    trial.plan(study(grid={"width": [4, 16]}))
    loop.turn()
    assert [(one["job"], [v.config for v in one["study"].variants]) for one in runs.started] == [
        ("try", [{"width": 4}, {"width": 16}])
    ]
    assert "Trying each architecture" in told[-1].markup
    runs.happens(ev.ForwardTried(1.0, 0), ev.ForwardTried(1.0, 1))
    runs.ends()
    assert told[-1] == Tried('<span class="hfta-tried">All 2 architectures ran on one batch.</span>')
    trial.plan(study(grid={"width": [4, 16], "lr": [1e-3, 1e-2]}))  # another lr is no other architecture
    loop.turn()
    assert len(runs.started) == 1
    trial.plan(None)
    assert told[-1] == Tried()


def test_nothing_is_tried_where_a_run_begins_first_or_in_this_process(runs: Runs, told: list[Tried]) -> None:
    loop = Loop()
    trial = DryRun("worker", loop, told.append)
    trial.plan(study())
    trial.leave()
    loop.turn()
    inline = DryRun("inline", loop, told.append)
    inline.plan(study())
    loop.turn()
    assert runs.started == []


def test_it_waits_for_the_worker_that_is_being_started(
    runs: Runs, told: list[Tried], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins meanwhile would have to start another one."""
    loop = Loop()
    trial = DryRun("worker", loop, told.append)
    monkeypatch.setattr(executors, "warm", lambda: False)
    trial.plan(study())
    for _ in range(3):
        loop.turn()
    assert runs.started == []
    monkeypatch.setattr(executors, "warm", lambda: True)
    loop.turn()
    assert [one["job"] for one in runs.started] == ["try"]


def test_what_comes_too_late_is_not_told(runs: Runs, told: list[Tried]) -> None:
    loop = Loop()
    trial = DryRun("worker", loop, told.append)
    trial.plan(study())
    loop.turn()
    trial.leave()
    runs.happens(WRONG)
    runs.ends()
    assert told[-1] == Tried()


def test_one_that_has_ended_at_once_is_told(told: list[Tried], tmp_path: Path) -> None:
    class Broken(nn.Module):
        def __init__(self, in_features: int = 4, num_classes: int = 3) -> None:
            super().__init__()
            self.layer = nn.Linear(in_features, num_classes)

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("never")

    made = Study(Broken, {"lr": [1e-3]}, "iris", epochs=1, device="cpu", directory=tmp_path)
    trial = DryRun("inline", Later(), told.append)
    trial.begin(made).wait(60)
    found = told[-1]
    raised = found.markup.split("hfta-source-raised", 1)[1].split("</span>", 1)[0]
    assert raised.endswith("raise ValueError(&quot;never&quot;)")
    assert "in forward" in found.markup
    assert found.wrong == found.off
    assert found.wrong.endswith('raise ValueError("never"): ValueError: never')


def test_what_is_wrong_is_text_what_to_do_comes_before_the_source_and_the_traceback_is_folded() -> None:
    made = study()
    markup, wrong, off = said(made, [ev.ForwardTried(1.0, 0), WRONG], "")
    assert wrong == "model.py:12: x = a < b: RuntimeError: <b>no</b>"
    assert off == ""  # one of two can be trained
    assert "<b>" not in markup
    assert "<x>" not in markup
    order = ["#1 width=8 fails on one batch.", "RuntimeError: ", "Change this line", "model.py:12", "x = a &lt; b"]
    places = [markup.index(text) for text in [*order, "<details><summary>Whole traceback"]]
    assert places == sorted(places)
    again = said(made, [WRONG, WRONG], "")
    assert "fails on one batch, as does 1 other of 2 architectures." in again.markup
    assert again.off == again.wrong
    nowhere = ev.ForwardTried(1.0, 0, "RuntimeError: no")
    assert said(made, [nowhere], "").wrong == "RuntimeError: no"
    unknown = said(made, [], "the worker was killed")
    assert unknown == Tried('<span class="hfta-tried">Not tried on a batch: the worker was killed</span>')
    assert key_of(made) == key_of(study(grid={"width": [8, 4]}))


def test_train_is_off_after_it_until_it_is_tried_again(make: Make, runs: Runs) -> None:
    bench = make()
    bench._dry_run.begin(bench.study)
    runs.happens(WRONG)
    runs.ends()
    assert "model.py:12, in forward" in bench.plan_view.tried.value
    assert bench.bar.status.startswith("model.py:12: x = a < b: RuntimeError: ")
    assert bench.bar.level == "bad"
    assert shown(bench)["train"] is False
    assert "model.py:12: x = a < b" in bench.train_view.buttons["train"].tooltip
    assert bench.plan_view.again.layout.display == ""
    bench.plan_view.again.click()
    assert shown(bench)["train"] is True
    runs.happens(ev.ForwardTried(1.0, 0))
    runs.ends()
    assert bench.plan_view.again.layout.display == "none"
    assert bench.bar.status == "ready to train 2 variants"


def test_where_some_architectures_run_they_can_be_trained(make: Make, runs: Runs) -> None:
    bench = make()
    bench._dry_run.begin(bench.study)
    runs.happens(ev.ForwardTried(1.0, 0), WRONG)
    runs.ends()
    assert bench.bar.level == "bad"
    press(bench, "train")
    runs.begins(bench)
    runs.happens(steps(1.0))
    assert bench.plan_view.tried.value == ""
    assert bench.bar.status == "training 2 variants"
