"""A run of another process is followed and controlled from here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_events import whole_run

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.records.events import Pin, Stop
from hfta_nb.records.store import Store
from hfta_nb.study import executors, running
from hfta_nb.study.executors import attaching
from tests.executors.watching import DEADLINE_S
from tests.polling import eventually

FILE = """
family = "mlp"
data = "iris"
epochs = 100000
directory = "run"
device = "cpu"
[space]
lr = [1e-3, 1e-2]
"""


@pytest.fixture
def tuning(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`hfta-nb tune` in a process of its own, which trains for as long as it may."""
    (tmp_path / "study.toml").write_text(FILE, encoding="utf-8")
    line = [sys.executable, "-m", "hfta_nb", "tune", "study.toml", "--quiet", "--threads", "1"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    store = Store(tmp_path / "run")
    eventually(lambda: process.poll() is None and store.exists and store.has_events and store.running)
    yield process
    process.kill()
    process.wait()


@pytest.mark.long
def test_a_run_is_watched_and_controlled_from_another_process(
    tuning: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "LOOK_INTERVAL_S", 0.05)
    handle = executors.attach(hfta.Study.load(tmp_path / "run"))
    eventually(lambda: len(handle.history.members) == 2 and handle.history.members[0].epoch > 2)
    handle.control.stop(1)
    eventually(lambda: handle.history.members[1].state == ev.STOPPED)
    assert handle.state == ev.RUNNING
    handle.control.pause()
    eventually(lambda: handle.state == ev.PAUSED)
    later = executors.attach(hfta.Study.load(tmp_path / "run"))
    assert later.state == ev.PAUSED
    later.control.resume()
    eventually(lambda: handle.state == ev.RUNNING)
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == ev.STOPPED
    assert tuning.wait(DEADLINE_S) == 130
    assert handle.error is None


@pytest.mark.long
def test_a_process_that_is_killed_is_told_of(
    tuning: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "LOOK_INTERVAL_S", 0.05)
    handle = executors.attach(hfta.Study.load(tmp_path / "run"))
    eventually(lambda: len(handle.history.members) == 2)
    tuning.kill()
    assert handle.wait(DEADLINE_S) == ev.INTERRUPTED
    assert "the process that ran it has ended before the run did" in str(handle.error)


def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this very process, whose requests take the same way; tests of the Workbench pause, resume and stop so."""
    monkeypatch.setattr(attaching, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(running, "SAMPLE_INTERVAL_S", 0.0)
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=100_000, device="cpu", directory=tmp_path)
    work = executors.start(study, kind="inline")
    eventually(lambda: study.store.has_events and study.store.running)
    handle = executors.attach(hfta.Study.load(tmp_path))
    eventually(lambda: len(handle.history.members) == 2 and handle.history.members[0].epoch > 2)
    seen: list[ev.Event] = []
    handle.subscribe(seen.append)
    handle.control.stop(1)
    eventually(lambda: handle.history.members[1].state == ev.STOPPED)
    assert handle.state == ev.RUNNING
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == work.wait(DEADLINE_S) == ev.STOPPED
    assert isinstance(seen[-1], ev.RunChanged)
    assert handle.error is None


def test_a_process_that_is_gone_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = iter([True, True])
    monkeypatch.setattr(Store, "running", property(lambda self: next(going, False)))
    monkeypatch.setattr(attaching, "LOOK_INTERVAL_S", 0.0)
    store = Store(tmp_path)
    for event in islice(whole_run({"lr": [1e-3, 1e-2]}), 8):
        store.append(event)
    handle = executors.attach(SimpleNamespace(store=store, directory=tmp_path))
    assert handle.wait(DEADLINE_S) == ev.INTERRUPTED
    assert "the process that ran it has ended before the run did" in str(handle.error)
    assert len(handle.history.members) == 2


def test_nobody_can_attach_to_a_run_that_nobody_runs(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", epochs=1, device="cpu", directory=tmp_path)
    list(study.run())
    with pytest.raises(WorkerError, match="nobody runs this study now"):
        executors.attach(study)


def test_what_was_asked_of_an_earlier_run_is_not_asked_of_the_next(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", epochs=1, device="cpu", directory=tmp_path)
    list(study.run())
    study.store.requests.post(Stop())
    list(study.run(epochs=2))
    assert study.history.state == ev.COMPLETE
    assert study.store.requests.take() == []


def test_requests_are_taken_once_and_in_their_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_study({})
    asked = [Pin(2), Stop(1), Pin(2, False), Stop()]
    for request in asked:
        Store(tmp_path).requests.post(request)
    store.note("request", {"0 damaged": {"request": {"type": "Teleport"}}, "1 too": {}})
    assert store.requests.take() == asked
    assert store.requests.take() == []
