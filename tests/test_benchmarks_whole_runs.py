"""The benchmark of whole runs works at a small size, and its tables say what it found; nothing is timed here."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks import performance_page, whole_runs
from benchmarks.one_run import JOBS, Phases, _share_out


@pytest.mark.long
def test_a_quick_run_is_written_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARKS_RESULTS", str(tmp_path))
    monkeypatch.setattr(performance_page, "RESULTS", tmp_path)
    assert performance_page._in_readme() == ""
    assert not list(performance_page._whole_runs())
    whole_runs.main(["--quick", "--models", "mlp", "search"])
    found = json.loads((tmp_path / "whole_runs.json").read_text(encoding="utf-8"))
    assert found["environment"]["versions"]["torch"]
    for row in found["rows"]:
        for way, of in row["ways"].items():
            assert tuple(of["phases"]) == whole_runs.PHASES
            assert sum(of["phases"].values()) == pytest.approx(of["run"]["median_s"], abs=0.01)
            assert of["peak_bytes"] > 2**20
            assert of["phases"]["steps"] > 0
            assert (of["phases"]["trials"] == 0) >= (way != "fused")
        loss = {way: of["loss"] for way, of in row["ways"].items()}
        assert loss["fused"] == pytest.approx(loss["serial"], rel=1e-3) or row["slots"]
    table, page = performance_page._in_readme(), "".join(performance_page._whole_runs())
    assert [name in table and name in page for name in ("MLP", "MLP, a search")] == [True, True]
    assert performance_page.readme(f"a\n{''.join(performance_page.MARKS)}b\n").startswith(
        f"a\n{performance_page.MARKS[0]}\nFrom"
    )


def test_every_study_has_a_name_for_readers() -> None:
    assert set(performance_page.RUNS) == set(JOBS)


def test_what_training_takes_beyond_the_pace_of_its_steps_is_trials() -> None:
    phases = Phases(time.time())
    phases.seconds["training"] = 10.0
    _share_out([(5.0, 10), (1.0, 10), (1.0, 10), (1.0, 10)], phases)
    assert (phases.seconds["steps"], phases.seconds["trials"]) == pytest.approx((4.0, 6.0))
    assert "training" not in phases.seconds


def test_ratios_are_formed_within_a_round() -> None:
    runs = {way: [{"run_s": first, "phases": {"steps": first / 2}, "cpu_s": 1.0, "peak_bytes": 1, "loss": 1.0},
                  {"run_s": 2 * first, "phases": {"steps": first / 2}, "cpu_s": 1.0, "peak_bytes": 1, "loss": 1.0}]
            for way, first in {"fused": 1.0, "serial": 3.0, "plain": 2.0}.items()}  # fmt: skip
    row = whole_runs.summary(runs)
    assert row["ratios"]["serial"]["rounds"] == (3.0, 3.0)
    assert row["ratios"]["plain"]["median"] == row["step_ratio"] == 2.0
