"""What the benchmarks share counts right; nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import common


def test_tasks_take_turns_and_every_other_round_goes_backwards() -> None:
    order: list[str] = []
    tasks = {name: lambda name=name: order.append(name) for name in "abc"}
    common.interleaved(tasks, rounds=2, warm_up=0)
    assert "".join(order) == "abccba"


def test_warm_up_does_not_count_and_a_task_may_tell_its_own_time() -> None:
    times = iter([100.0, 1.0, 3.0, 2.0])
    [timing] = common.interleaved({"a": lambda: next(times)}, rounds=3, warm_up=1).values()
    assert timing.rounds_s == (1.0, 3.0, 2.0)
    assert timing.median_s == 2.0
    assert timing.low_s <= timing.median_s <= timing.high_s


def test_a_single_round_has_no_spread() -> None:
    assert common.Timing.of([2.0]) == common.Timing(2.0, 2.0, 2.0, (2.0,))


def test_figures_are_kept_with_what_they_were_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path / "benchmarks" / "results")
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "benchmarks" / "speed.py"), "--name", "a b"])
    path = common.write("speed", {"fused": common.Timing.of([1.0, 2.0]), "ratio": 2.5})
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["fused"]["rounds_s"] == [1.0, 2.0]
    assert found["ratio"] == 2.5
    assert found["environment"]["command"] == "python benchmarks/speed.py --name 'a b'"
    assert found["environment"]["versions"]["torch"]
    assert found["environment"]["cores"] >= 1
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
