"""Leaving a loop over a run, in any way: the run ends like a stopped one, and can be resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.errors import StudyError
from hfta_nb.study import loop
from hfta_nb.train.step import ArrayStep
from tests.frames import steady


def make(place: Path, **more: Any) -> hfta.Study:
    options = {"epochs": 4, "dtype": "float64", "dropout": 0.2, "padding": "never", "device": "cpu", **more}
    return hfta.Study("mlp", {"lr": [1e-3, 1e-2], "width": [4, 8]}, "iris", directory=place, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    study = make(tmp_path_factory.mktemp("leaving") / "whole")
    list(study.run())
    return steady(study.results())


def goes_on(place: Path, whole: pd.DataFrame, best: bool = True) -> None:
    """What every run that was left can do: give its best, say how to carry on, and do so to the same end."""
    found = hfta.Study.load(place)
    assert found.history.state == ev.STOPPED
    assert {m.state for m in found.history.members.values()} <= {ev.STOPPED, ev.COMPLETE}
    if best:
        found.best().module()
    with pytest.raises(StudyError, match=r"already there; got|already there; resume it with run\(resume=True\)"):
        next(iter(found.run()))
    list(found.run(resume=True))
    pd.testing.assert_frame_equal(steady(found.results()), whole, atol=1e-10, rtol=0)


def at(event: ev.Event, group: int, epoch: int) -> bool:
    return isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (group, epoch)


@pytest.mark.parametrize(
    "when",
    [
        lambda e: isinstance(e, ev.RunStarted),
        lambda e: isinstance(e, ev.PhaseChanged) and e.phase == "building",
        lambda e: at(e, 0, 2),
        lambda e: at(e, 0, 4),
        lambda e: at(e, 1, 1),
    ],
    ids=["at once", "while building", "in the first array", "at its end", "in the second array"],
)
def test_break_keeps_everything(tmp_path: Path, whole: pd.DataFrame, when: Callable[[ev.Event], bool]) -> None:
    study, seen = make(tmp_path), 0
    for event in study.run():
        seen += isinstance(event, ev.EpochDone)
        if when(event):
            break
    goes_on(tmp_path, whole, best=seen > 0)


def test_break_at_the_very_end_is_the_end(tmp_path: Path, whole: pd.DataFrame) -> None:
    study = make(tmp_path)
    for event in study.run():
        if at(event, 1, 4):
            break
    assert study.history.state == ev.COMPLETE
    pd.testing.assert_frame_equal(steady(study.results()), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_in_the_loop_keeps_everything(
    tmp_path: Path, whole: pd.DataFrame, error: type[BaseException]
) -> None:
    def cell() -> None:
        for event in make(tmp_path).run():
            if at(event, 0, 2):
                raise error

    with pytest.raises(error):
        cell()
    goes_on(tmp_path, whole)


def left(place: Path, kept: list[Any], error: type[BaseException] = ValueError) -> None:
    """A loop that is left by an exception, over an iterator that somebody holds."""
    events = make(place).run()
    kept.append(events)
    for event in events:
        if at(event, 0, 2):
            raise error


def test_the_next_run_ends_one_that_was_abandoned(tmp_path: Path, whole: pd.DataFrame) -> None:
    kept: list[Any] = []
    with pytest.raises(ValueError):  # noqa: PT011 - no words
        left(tmp_path, kept)
    assert hfta.Study.load(tmp_path).history.state == ev.RUNNING
    again = make(tmp_path)
    with pytest.raises(StudyError, match=r"resume it with run\(resume=True\)"):
        next(iter(again.run()))
    assert next(kept[0], None) is None
    goes_on(tmp_path, whole)


class Shell:
    """What of IPython's shell is used."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}
        self.events = SimpleNamespace(register=self.hooks.__setitem__)


def test_a_cell_that_raises_ends_its_run_and_no_other(
    tmp_path: Path, whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    other: list[Any] = []

    def cell_before() -> None:
        other.append(make(tmp_path / "other").run())
        next(other[0])

    cell_before()
    shell.hooks["post_run_cell"](SimpleNamespace(success=True))
    kept: list[Any] = []
    with pytest.raises(ValueError):  # noqa: PT011
        left(tmp_path / "this", kept)
    shell.hooks["post_run_cell"](SimpleNamespace(success=False))
    goes_on(tmp_path / "this", whole)
    assert hfta.Study.load(tmp_path / "other").history.state == ev.RUNNING
    other[0].close()


@pytest.fixture
def default_handler() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_within_a_step_waits_for_its_end(
    tmp_path: Path, whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, steps = ArrayStep.train, []

    def interrupted(self: ArrayStep, *args: Any, **more: Any) -> Any:
        steps.append(0)
        if len(steps) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return train(self, *args, **more)

    monkeypatch.setattr(ArrayStep, "train", interrupted)
    handlers = set()

    def cell() -> None:
        for _ in make(tmp_path).run():
            handlers.add(signal.getsignal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        cell()
    assert handlers == {signal.default_int_handler}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(steps) == 9
    monkeypatch.undo()
    goes_on(tmp_path, whole)


@pytest.mark.usefixtures("default_handler")
def test_a_second_interrupt_ends_at_once(tmp_path: Path, whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    train, steps = ArrayStep.train, []

    def interrupted(self: ArrayStep, *args: Any, **more: Any) -> Any:
        steps.append(0)
        found = train(self, *args, **more)
        if len(steps) == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("went on")
        return found

    monkeypatch.setattr(ArrayStep, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(make(tmp_path).run())
    assert len(steps) == 9
    monkeypatch.undo()
    goes_on(tmp_path, whole, best=False)  # there was no checkpoint yet: it begins anew


def test_code_of_the_family_that_ends_the_process(tmp_path: Path) -> None:
    @hfta.family(name="exits")
    def exits(in_features: int = 1) -> Any:
        import torch

        class Exits(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if x.is_meta:
                    return super().forward(x)
                raise SystemExit(7)

        return Exits(in_features, 3)

    study = hfta.Study("exits", {"lr": [0.1, 0.2]}, "iris", epochs=1, device="cpu", directory=tmp_path)
    with pytest.raises(SystemExit):
        list(study.run())
    assert (study.history.state, study.history.members[0].state) == (ev.STOPPED, ev.STOPPED)


def test_a_handler_of_somebody_else_stays() -> None:
    def mine(*_: object) -> None:
        """Somebody's."""

    before = signal.signal(signal.SIGINT, mine)
    try:
        with loop.Interrupts(hfta.Control()):
            assert signal.getsignal(signal.SIGINT) is mine
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_end_of_the_process_ends_its_runs(tmp_path: Path, whole: pd.DataFrame) -> None:
    kept: list[Any] = []
    with pytest.raises(ValueError):  # noqa: PT011
        left(tmp_path, kept)
    loop._end_all()
    goes_on(tmp_path, whole)


def lost(place: Path, whole: pd.DataFrame) -> None:
    """A run of which nobody has said how it ended."""
    found = hfta.Study.load(place)
    assert found.history.state == ev.INTERRUPTED
    assert "it was killed" in found.history.reason
    assert "run(resume=True) resumes it" in found.history.reason
    assert set(found.results()["state"]) == {ev.INTERRUPTED}
    list(found.run(resume=True))
    pd.testing.assert_frame_equal(steady(found.results()), whole, atol=1e-10, rtol=0)


def test_a_run_that_nobody_runs_is_not_running(tmp_path: Path, whole: pd.DataFrame) -> None:
    """What a process leaves that is killed: a copy of its directory, which nobody has locked."""
    kept: list[Any] = []
    with pytest.raises(ValueError):  # noqa: PT011
        left(tmp_path / "run", kept)
    shutil.copytree(tmp_path / "run", tmp_path / "lost")
    assert hfta.Study.load(tmp_path / "run").history.state == ev.RUNNING
    kept[0].close()
    assert main(["results", str(tmp_path / "lost")]) == 0
    lost(tmp_path / "lost", whole)


SCRIPT = """
import os, signal, sys
import hfta_nb as hfta
from hfta_nb import events as ev
study = hfta.Study("mlp", {{"lr": [1e-3, 1e-2], "width": [4, 8]}}, "iris", directory={place!r}, epochs=4,
                   dtype="float64", dropout=0.2, padding="never", device="cpu")
events = study.run()
for event in events:
    if isinstance(event, ev.EpochDone) and event.epoch == 2:
        {end}
"""


@pytest.mark.long
def test_a_process_that_exits_ends_its_runs(tmp_path: Path, whole: pd.DataFrame) -> None:
    code = SCRIPT.format(place=str(tmp_path), end="sys.exit(3)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
    goes_on(tmp_path, whole)


@pytest.mark.long
def test_a_run_whose_process_was_killed_is_not_running(tmp_path: Path, whole: pd.DataFrame) -> None:
    code = SCRIPT.format(place=str(tmp_path), end="os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    lost(tmp_path, whole)
