"""A run that goes on when the process that started it restarts or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.study import executors
from tests.executors.watching import DEADLINE_S
from tests.polling import eventually, gone

ROOT = Path(__file__).parents[2]

KERNEL = """
import sys, hfta_nb as hfta
from hfta_nb.study import executors
epochs, directory, detach = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "detach"

def build(width=4):
    import torch
    print("built", flush=True)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 3))

study = hfta.Study(build, {"lr": [1e-2, 1e-3]}, "iris", epochs=epochs, device="cpu", directory=directory)
run = executors.start(study, detach=detach)
reached = 0
while reached < 2:
    with run.lock:
        reached = max((m.epoch for m in run.history.members.values()), default=0)
print("pid", run.pid, flush=True)
sys.stdin.read()
"""
"""Stands for a kernel; its model is defined in a cell."""


def kernel(place: Path, epochs: int, detach: bool = True) -> tuple[subprocess.Popen[str], int]:
    """A process with a run that is on, and the id of the run's process."""
    command = [sys.executable, "-W", "ignore", "-c", KERNEL, str(epochs), str(place), "detach" if detach else ""]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = next(line.split() for line in process.stdout if line.startswith("pid"))
    return process, int(said[1])


def build(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


def restarted(process: subprocess.Popen[str]) -> None:
    """End it as Jupyter restarts a kernel: with its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def left(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, which ends what it has not detached."""
    process.communicate()


ENDS = pytest.mark.parametrize("end", [restarted, pytest.param(left, marks=pytest.mark.long)])


@ENDS
def test_a_run_goes_on_to_its_end_without_the_process_that_started_it(tmp_path: Path, end: object) -> None:
    process, pid = kernel(tmp_path / "run", 40)
    end(process)  # type: ignore[operator]
    study = hfta.Study.load(tmp_path / "run", family=build)
    if study.store.running:
        handle = executors.attach(study)
        assert handle.wait(DEADLINE_S) == ev.COMPLETE
        assert "built" in handle.log
    eventually(lambda: gone(pid), "the process to end after its run")
    there = study.reload().history
    assert (there.state, [m.epoch for m in there.members.values()]) == (ev.COMPLETE, [40, 40])


@pytest.mark.long
def test_it_is_stopped_from_another_process(tmp_path: Path) -> None:
    process, pid = kernel(tmp_path / "run", 100_000)
    restarted(process)
    handle = executors.attach(hfta.Study.load(tmp_path / "run", family=build))
    reached = handle.history.members[0].epoch
    eventually(lambda: handle.history.members[0].epoch > reached, "another epoch")
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == ev.STOPPED
    eventually(lambda: gone(pid), "the process to end after its run")


def test_a_process_that_is_killed_leaves_an_interrupted_run_which_goes_on(tmp_path: Path) -> None:
    process, pid = kernel(tmp_path / "run", 100_000)
    restarted(process)
    psutil.Process(pid).kill()
    study = hfta.Study.load(tmp_path / "run", family=build)
    eventually(lambda: study.store.running is False, "the process to end, and what it may have forked")
    history = study.reload().history
    assert history.state == ev.INTERRUPTED
    assert {m.state for m in history.members.values()} == {ev.INTERRUPTED}


@ENDS
def test_what_is_not_detached_ends_with_the_process_that_started_it(tmp_path: Path, end: object) -> None:
    process, pid = kernel(tmp_path / "run", 100_000, detach=False)
    end(process)  # type: ignore[operator]
    eventually(lambda: gone(pid), "the worker to end")
    study = hfta.Study.load(tmp_path / "run", family=build)
    eventually(lambda: study.store.running is False, "what it may have forked to end")
    assert study.reload().history.state in (ev.INTERRUPTED, ev.STOPPED)
