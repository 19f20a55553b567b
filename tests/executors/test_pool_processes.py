"""Pools of real processes."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.workers.pools import Processes, Terms
from hfta_nb.workers.processes import child_process
from hfta_nb.workers.processes.child_process import ChildProcess
from tests.call_log import instances
from tests.executors.test_pools import make, same
from tests.forked import forked as forked
from tests.polling import gone

OFTEN = Terms(checkpoint_every_s=0.0)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[ChildProcess]:
    """All processes that are started."""
    return instances(ChildProcess, monkeypatch)


@pytest.mark.long
def test_a_process_as_it_is_started(tmp_path: Path, workers: list[ChildProcess]) -> None:
    """Other tests fork theirs."""
    study = make(tmp_path, 1, {"width": [4], "lr": [1e-3, 1e-2]})
    list(study.run(executor="processes", workers=1))
    assert study.history.state == ev.COMPLETE
    assert [gone(worker.pid) for worker in workers] == [True]


@pytest.mark.long  # actors that are killed are tried by make test
@pytest.mark.usefixtures("forked")
def test_processes_that_are_killed_change_nothing(
    tmp_path: Path, inline: hfta.Study, workers: list[ChildProcess]
) -> None:
    """A worker and its replacement are killed; none outlives the run."""
    study = make(tmp_path)
    executor = Processes(2, threads=1, terms=OFTEN)
    done: list[int] = []
    phases = []
    for event in study.run(executor=executor):
        if isinstance(event, ev.PhaseChanged):
            phases.append(event)
        if isinstance(event, ev.ArrayPlaced) and event.slots and event.group == 0 and len(done) < 2:
            done.append(next(w.pid for w in workers if w.name == event.worker))
            os.kill(done[-1], signal.SIGKILL)
    again = [e.detail for e in phases if e.phase == "starting again"]
    assert [f"process {pid} was killed (SIGKILL)" in text for pid, text in zip(done, again, strict=True)] == [True] * 2
    same(study, inline)
    same(hfta.Study.load(tmp_path), inline)
    assert len(workers) == 4
    assert all(gone(worker.pid) for worker in workers)


@pytest.mark.long
@pytest.mark.usefixtures("forked")
def test_twenty_kills(tmp_path: Path, workers: list[ChildProcess]) -> None:
    """At random moments, of random workers."""
    plain = make(tmp_path / "plain", 40)
    list(plain.run())
    study = make(tmp_path / "killed", 40)
    chance, kills = random.Random(0), 0
    for event in study.run(executor=Processes(2, threads=1, terms=Terms(checkpoint_every_s=0.0, restarts=20))):
        if isinstance(event, ev.EpochDone) and kills < 20 and chance.random() < 0.3:
            there = [worker.pid for worker in workers if not gone(worker.pid)]
            if there:  # else both are dead, and what they told before is still coming in
                os.kill(chance.choice(there), signal.SIGKILL)
                kills += 1
    assert kills == 20
    same(study, plain)


def test_the_threads_of_the_machine_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_THREADS", "6")
    settings = make(tmp_path, 1).settings()

    def divided(groups: int, **given: int) -> tuple[int, int]:
        site = Processes(**given).open(settings, groups)
        return site.slots, site._threads

    assert divided(9, workers=2) == (2, 3)
    assert divided(9, workers=4) == (4, 1)
    assert divided(3) == (3, 2)
    assert divided(9) == (6, 1)
    assert divided(9, workers=2, threads=1) == (2, 1)
    site = Processes().open(settings, 9, 2)
    assert (site.slots, site._threads) == (3, 1)  # each slot has two devices
    site = Processes(4, terms=Terms(most=3)).open(settings, 1)
    assert (site.slots, site._threads) == (3, 2)


def test_each_gpu_has_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process is told; no GPU is needed for that."""
    import torch

    from hfta_nb.workers.pools import processes

    spawned: list[dict[str, str]] = []

    def spawn(command: object, own: dict[str, str], heard: bool, session: bool) -> None:
        spawned.append(own)
        raise RuntimeError("no process")

    monkeypatch.setattr(child_process, "spawn", spawn)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    settings = make(tmp_path, 1).settings()
    object.__setattr__(settings, "device", torch.device("cuda", 1))
    site = Processes().open(settings, 7)
    assert site.slots == 2
    for slot in range(2):
        with pytest.raises(RuntimeError, match="no process"):
            site.worker((slot,))
    with pytest.raises(RuntimeError, match="no process"):
        site.worker((0, 1))
    assert [own["CUDA_VISIBLE_DEVICES"] for own in spawned] == ["3", "GPU-5", "3,GPU-5"]
    with pytest.raises(RuntimeError, match="no process"):
        Processes().open(settings, 7, 2).worker((0,))
    assert spawned[-1]["CUDA_VISIBLE_DEVICES"] == "3,GPU-5"
    with pytest.raises(WorkerError, match="not so many GPUs"):
        Processes().open(settings, 7, 3)
    with pytest.raises(WorkerError, match="not so many GPUs for one array"):
        Processes(3).open(settings, 7).worker((0, 2))
    assert processes.on_first_device(settings).device == torch.device("cuda", 0)
