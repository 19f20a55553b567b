"""The number of torch's threads."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch

import hfta_nb as hfta
from hfta_nb.cli import main
from hfta_nb.errors import WorkerError
from hfta_nb.study.executors import threads
from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.processes import cores


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A machine of so many cores, and a container's quota of processor time."""

    def make(usable: int, physical: int | None = None, quota: str | None = None) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)), raising=False)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical or usable)
        file = tmp_path / "cpu.max"
        if quota:
            file.write_text(quota)
        monkeypatch.setattr(cores, "_QUOTA", file)
        monkeypatch.setattr(cores, "_QUOTA_V1", (tmp_path / "quota", tmp_path / "period"))

    return make


@pytest.mark.parametrize(("usable", "physical", "expected"), [(1, 1, 1), (2, 2, 1), (8, 16, 7), (16, 8, 8), (8, 8, 7)])
def test_a_core_is_left_to_others_and_none_is_shared(machine, usable: int, physical: int, expected: int) -> None:
    machine(usable, physical)
    assert threads({}) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 63), ("400000 100000", 3), ("150000 100000", 1), ("nonsense", 63)]
)
def test_a_containers_quota_counts(machine, quota: str, expected: int) -> None:
    machine(64, quota=quota)
    assert threads({}) == expected


def test_an_older_kind_of_quota_counts(machine, tmp_path: Path) -> None:
    machine(64)
    (tmp_path / "quota").write_text("300000\n")
    (tmp_path / "period").write_text("100000\n")
    assert threads({}) == 2
    (tmp_path / "quota").write_text("-1\n")
    assert threads({}) == 63


def test_what_a_batch_system_allows_is_not_exceeded(machine) -> None:
    machine(64)
    assert threads({"OMP_NUM_THREADS": "4"}) == 4
    assert threads({"OMP_NUM_THREADS": "8,2"}) == 8
    assert threads({"OMP_NUM_THREADS": "128"}) == 63
    assert threads({"OMP_NUM_THREADS": "dynamic"}) == 63


def test_a_person_may_know_better(machine) -> None:
    machine(2)
    assert threads({"HFTA_NB_THREADS": "5", "OMP_NUM_THREADS": "1"}) == 5


@pytest.mark.parametrize("wrong", ["many", "0", "-1", "1.5"])
def test_a_wrong_number_is_told(wrong: str) -> None:
    with pytest.raises(WorkerError, match="HFTA_NB_THREADS: not a number of threads"):
        threads({"HFTA_NB_THREADS": wrong})


def test_a_worker_does_not_spin_unless_a_person_wants_it(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(8)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    found = cores.environment()
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "7"
    assert found["OMP_WAIT_POLICY"] == "ACTIVE"
    assert found["GOMP_SPINCOUNT"] == "0"


MANY = [5, 64, 10**9]


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("how", ["devices", "workers", "both"])
def test_no_more_processes_than_cores_are_started(
    machine, count: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(usable=2)
    monkeypatch.setattr("subprocess.Popen", None)
    devices = {"devices": count, "both": 3}.get(how, 1)
    where = {"workers": {"executor": "processes", "workers": count}, "both": {"executor": "processes", "workers": 2}}
    study = hfta.Study(
        "mlp", {"lr": [0.1]}, "iris", epochs=1, devices=devices, device="cpu", directory=tmp_path / "run"
    )
    with pytest.raises(
        WorkerError, match=r"more processes than .* has cores \(2\).*accepted: 1 to 4; lower (devices|workers)"
    ):
        study.run(**where.get(how, {}))
    with pytest.raises(WorkerError, match="more processes than"):
        study.profile(devices=count)
    with pytest.raises(WorkerError, match="more processes than"):
        Followers(devices if devices > 3 else count, torch.device("cpu"))
    assert not study.directory.exists()


@pytest.mark.parametrize("count", ["5", "64"])
@pytest.mark.parametrize("option", ["devices", "workers"])
def test_nor_by_a_command(
    machine,
    count: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(usable=2)
    monkeypatch.setattr("subprocess.Popen", None)
    file = tmp_path / "study.toml"
    file.write_text(
        f'family = "mlp"\nepochs = 1\ndirectory = "{tmp_path}/tune"\ndevices = {count}\n[space]\nlr = [0.1]\n'
    )
    grid = ["run", "--family", "mlp", "--grid", "lr=0.1", "--epochs", "1", "--output", str(tmp_path / "run")]
    runs = [[*grid, "--executor", "processes", "--workers", count]]
    if option == "devices":
        runs = [[*grid, "--devices", count], ["tune", str(file)]]
    for command in runs:
        assert main(command) == 2
        told = capsys.readouterr().err
        assert "more processes than this machine has cores" in told
        assert f"lower {option}" in told
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_larger_machine_is_read_here(machine, tmp_path: Path) -> None:
    machine(usable=64)
    study = hfta.Study("mlp", {"lr": [0.1]}, "iris", epochs=1, devices=32, device="cpu", directory=tmp_path / "run")
    study.save(study.directory)
    machine(usable=2)
    assert hfta.Study.load(study.directory).devices == 32


def test_threads_and_actors_have_a_limit_as_well() -> None:
    for wrong in (10**5, 10**400):
        with pytest.raises(WorkerError, match="more threads than any machine"):
            hfta.pools.Processes(threads=wrong)
        with pytest.raises(WorkerError, match="more than a cluster has"):
            hfta.pools.OnRay(workers=wrong)
        with pytest.raises(WorkerError, match="more than a cluster has"):
            hfta.pools.OnRay().reach(wrong)
        with pytest.raises(WorkerError, match="not a number of threads"):
            cores.threads({cores.OVERRIDE: str(wrong)})
