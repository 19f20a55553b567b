"""What the benchmarks share counts right; nothing here is timed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import accuracy, common
from hfta_nb.data import Data
from hfta_nb.losses import IGNORED


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


def test_a_unigram_knows_each_tokens_share_of_the_training_text_alone() -> None:
    y, held = torch.tensor([[0, 0, 1, IGNORED]]), torch.tensor([[0, 2, IGNORED, IGNORED]])
    data = Data("toy", "masked_language_model", y, y, held, held, {"vocab_size": 3})
    shares = [(2 + 1) / 6, (0 + 1) / 6]  # of 0 and of 2, one added to every count
    assert accuracy.unigram_nats(data) == pytest.approx(-(math.log(shares[0]) + math.log(shares[1])) / 2)


def test_a_bar_is_a_least_score_or_least_nats_below_the_unigram() -> None:
    digits, gpt, bert = (accuracy.ROWS[name] for name in ("digits", "gpt", "bert"))
    assert accuracy.reached(digits, {"best": 0.98})
    assert not accuracy.reached(digits, {"best": 0.979})
    assert accuracy.reached(gpt, {"best": 2.0, "below_unigram_nats": 1.0})
    assert not accuracy.reached(gpt, {"best": 2.0, "below_unigram_nats": 0.99})
    assert accuracy.reached(bert, {"best": 9.0, "below_unigram_nats": -1.0})  # reported only
