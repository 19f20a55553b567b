"""The number of torch's threads."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hfta_nb.errors import WorkerError
from hfta_nb.executors import threads
from hfta_nb.processes import cores


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
