"""Common functions of the benchmarks count correctly; nothing is timed here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import accuracy, common, convergence
from hfta_nb.data import Data
from hfta_nb.models.losses import IGNORED


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
    digits, gpt, parts = (accuracy.ROWS[name] for name in ("digits", "gpt", "pointnet_seg"))
    assert accuracy.reached(digits, {"best": 0.98})
    assert not accuracy.reached(digits, {"best": 0.979})
    assert accuracy.reached(gpt, {"best": 2.0, "below_unigram_nats": 1.0})
    assert not accuracy.reached(gpt, {"best": 2.0, "below_unigram_nats": 0.99})
    assert accuracy.reached(parts, {"best": 0.0})  # reported only


def test_losses_of_every_step_are_kept_fused_and_alone_and_with_last_bits_changed() -> None:
    task = convergence.Task("mlp", "mlp", "digits", (1e-3, 1e-2), {"width": 8, "batch_size": 64})
    fused = convergence.losses_of(task, "float64", 30, serial=False)  # into the second epoch
    alone = convergence.losses_of(task, "float64", 30, serial=True)
    changed = convergence.losses_of(task, "float64", 30, serial=True, nudged=True)
    assert fused.shape == (1, 2, 30)
    assert (fused - alone).abs().max() < 1e-10
    assert (changed - alone).abs().max() > 0
    assert (fused[0, 0, 1:] != fused[0, 1, 1:]).all()  # from the second step on: the learning rates differ
    assert (fused[0, :, 0] > fused[0, :, -1]).all()


def test_a_gap_is_found_where_there_is_one() -> None:
    steps = torch.arange(1.0, 41.0, dtype=torch.float64)
    runs = {f"{kind}_{dtype}": steps.clone() for kind in convergence.KINDS for dtype in convergence.DTYPES}
    runs["fused_float32"][24] += 0.5
    found = convergence.curve("loss", 0.1, runs)
    gap = found["fused_and_serial_float32"]
    assert (gap["largest_gap"], gap["largest_relative_gap"]) == (0.5, 0.5 / 25)
    assert gap["gap_by_block"] == [0.0, 0.0, 0.5, 0.0]
    assert found["fused_and_serial_float64"]["largest_gap"] == 0.0
    assert found["serial_float64"] == [5.5, 15.5, 25.5, 35.5]


def test_the_figure_is_drawn_from_what_is_kept(tmp_path: Path) -> None:
    runs = {f"{k}_{d}": torch.linspace(2, 1, 40) for k in convergence.KINDS for d in convergence.DTYPES}
    curves = [convergence.curve(name, 0.1, runs) for name in ("generator_loss", "discriminator_loss")]
    path = convergence.draw({"models": [{"title": "two networks", "curves": curves}]}, tmp_path / "figure.png")
    with Image.open(path) as image:
        assert image.width > 700
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10
