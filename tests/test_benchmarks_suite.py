"""The benchmark suite counts correctly and reports no figure for a wrong or missing mode; nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.suite import command, machine, plot
from benchmarks.suite.agreement import TOLERANCES, agrees, differences, rounding, tolerances
from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.measure import WORTH, measure
from benchmarks.suite.modes import MODES, default, processes
from benchmarks.suite.modes.base import Lap, Mode
from benchmarks.suite.modes.ours import Ours
from benchmarks.suite.modes.serial import Serial
from benchmarks.suite.modes.stacked import StackedAdam
from benchmarks.suite.recurrence import WrittenOutLSTM
from benchmarks.suite.tasks import BATCHES, Feed, tasks
from hfta_nb.engine.replay.inductor import compile as compiling

LINE = {"model": "mlp", "members": 8, "precision": "float32", "mode": "ours"}
ROOT = Path(__file__).resolve().parents[1]
PEAKS = {"matrix_flop_per_s": 1e9, "bandwidth": [[100, 8e9], [1000, 4e9], [10000, 1e9]], "operator_s": 1e-6}
FIELDS = {
    *("model", "members", "precision", "mode", "measured", "why", "agrees", "differences", "tolerances", "rounding"),
    *(
        "step_s",
        "step_cpu_s",
        "samples_per_s",
        "ratio_to_serial",
        "ratio_to_best_serial",
        "best_serial",
        "memory_bytes",
    ),
    *("flop_per_step", "flop_per_s", "fraction_of_peak", "roofline", "peaks", "data_share", "load", "prepare_s"),
    *("device", "device_name", "threads", "versions", "commit", "command", "size", "batch", "first_losses"),
}


def job(model: str = "mlp", members: int = 2, **more: Any) -> Job:
    return Job(model, members, quick=True, check_steps=4, **more)


@pytest.mark.long
def test_the_command_writes_a_line_per_mode_with_all_that_it_measured_and_draws_them(tmp_path: Path) -> None:
    out = tmp_path / "suite.jsonl"
    words = "--quick --busy-ok --models mlp --members 2 --modes serial,vmap,ours --precisions float32,tf32 --device cpu"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words.split(), "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    every = plot.read(out)
    lines = [line for line in every if line["precision"] == "float32"]
    assert [line["mode"] for line in lines] == ["serial", "vmap", "ours"]
    for line in lines:
        assert set(line) >= FIELDS
        assert line["measured"]
        assert line["agrees"], line["differences"]
        assert line["step_s"]["low"] <= line["step_s"]["median"] <= line["step_s"]["high"]
        assert len(line["step_s"]["rounds"]) == line["rounds"] == 3
        assert line["samples_per_s"] == pytest.approx(2 * line["batch"] / line["step_s"]["median"])
        assert line["best_serial"] == "serial"
        assert line["load"]["load_average_1min"] >= 0
        assert line["command"].endswith("--precisions float32,tf32 --device cpu")
        assert str(ROOT) not in json.dumps(line)
    assert lines[0]["ratio_to_serial"]["median"] == 1.0
    refused = [line for line in every if line["precision"] == "tf32"]
    assert [line["why"] for line in refused] == ["a CPU has no tf32"] * 3
    assert not any("step_s" in line for line in refused)

    drawn = plot.figure([every[0], every[1] | {"agrees": False, "samples_per_s": None}, *every[2:]])
    above, below = (a.get_legend_handles_labels()[1] for a in drawn.axes if a.axison)
    assert above == ["serial", "hfta_nb: array.backward", "torch.func.vmap: losses do not agree"]
    assert below == ["serial", "hfta_nb: array.backward"]
    assert command.main(["plot", str(out)]) == 0
    assert out.with_suffix(".png").stat().st_size > 1000


class Hasty(Serial):
    """Wrong on purpose: the learning rates are twice what they should be."""

    def __init__(self, given: Job) -> None:
        super().__init__(given)
        for trainer in self.trainers:
            trainer.optimizers[0].param_groups[0]["lr"] *= 2


class Lazy(Serial):
    """Wrong on purpose: the second member's steps do nothing."""

    def __init__(self, given: Job) -> None:
        super().__init__(given)
        self.trainers[1].optimizers = [torch.optim.Adam([torch.zeros(1)], lr=1.0)]


class Failing(Mode):
    """Runs out of memory in the first round."""

    def train(self, steps: int) -> Any:
        if self.done >= self.job.check_steps:
            raise torch.OutOfMemoryError("out of memory, it is said")
        return steps

    def losses(self, held: Any) -> list[list[float]]:
        return [[1.0] * self.job.members] * held


@pytest.mark.long
@pytest.mark.parametrize("wrong", [Hasty, Lazy])
def test_a_mode_that_trains_something_else_is_marked_and_gets_no_ratio(
    wrong: type[Mode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODES, "wrong", wrong)
    serial, found, ours = measure(job(), ["wrong", "ours"], PEAKS, rounds=2, lap_s=0.001)
    assert found["measured"]
    assert not found["agrees"]
    assert [found[name] for name in WORTH] == [None] * len(WORTH)
    assert "DOES NOT AGREE" in command.shown(found)
    assert serial["agrees"]
    assert ours["agrees"]
    assert ours["ratio_to_serial"]["median"] > 0


@pytest.mark.long
def test_a_compiled_step_is_measured_as_compiled_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "_compiled", lambda module, examples: module)  # the compiler is another test's
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    _, found = measure(job(), ["ours_compiled"], PEAKS, rounds=2, lap_s=0.001)
    assert found["measured"]
    assert found["agrees"], found["differences"]
    assert "compiled in " in found["note"]
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    _, found = measure(job(), ["ours_compiled"], PEAKS, rounds=2, lap_s=0.001)
    assert not found["measured"]
    assert found["why"] == "not compiled: there is no C++ compiler"
    assert not {"vmap_compiled", "ours_compiled"} & {*default("cpu"), *default("cuda")}


@pytest.mark.long
def test_a_mode_that_fails_leaves_its_reason_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, "failing", Failing)
    _, found, ours = measure(job(), ["failing", "ours"], PEAKS, rounds=2, lap_s=0.001)
    assert found["why"] == "out of memory: out of memory, it is said"
    assert not any(isinstance(found.get(name), float) for name in ("step_s", "samples_per_s", *WORTH))
    assert "not measured" in command.shown(found)
    assert ours["agrees"]


@pytest.mark.long
def test_without_serial_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, "serial", Failing)
    records = list(measure(job(), ["ours"], PEAKS, rounds=1, lap_s=0.001))
    assert {record["mode"] for record in records} >= {"ours"}
    for record in records:
        assert not record["measured"]
        assert "out of memory" in record["why"]


@pytest.mark.only(model="mlp")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("model", tasks())
def test_vmap_and_ours_train_what_serial_trains(model: str) -> None:
    given = job(model)
    serial = Serial(given).lap(4).losses
    allowed = tolerances("float32", rounding(given, serial))
    for name in ("vmap", "ours", "ours_split"):
        apart = differences(MODES[name](given).lap(4).losses, serial, 4)
        assert agrees(apart, allowed), (name, apart, allowed)


def test_all_half_precisions_of_a_cpu_agree() -> None:
    for precision in ("bf16", "fp16"):
        serial = Serial(job(precision=precision)).lap(4).losses
        for name in ("vmap", "ours", "ours_split"):
            apart = differences(MODES[name](job(precision=precision)).lap(4).losses, serial, 4)
            assert agrees(apart, TOLERANCES[precision]), (precision, name, apart)


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "transformer", "bert"])
def test_jax_trains_what_serial_trains(model: str) -> None:
    pytest.importorskip("jax")
    mode = MODES["jax"](job(model))
    assert agrees(differences(mode.lap(4).losses, Serial(job(model)).lap(4).losses, 4), TOLERANCES["float32"])
    with pytest.raises(UnavailableError, match="torch only"):
        MODES["jax"](job("dcgan"))


@pytest.mark.long
def test_processes_train_what_serial_trains_and_are_used_again() -> None:
    serial = Serial(job()).lap(4).losses
    try:
        for _ in range(2):
            mode = MODES["processes"](job())
            lap = mode.lap(4)
            assert lap.losses == serial
            assert (mode.own_memory() or 0) > 0
            assert lap.cpu_s > 0
            mode.close()
        assert len(processes._idle) == 2
        with pytest.raises(UnavailableError, match=r"member.s process failed: .*elephant"):
            MODES["processes"](job("elephant"))
    finally:
        processes.end_idle()


def test_more_processes_than_memory_are_not_started() -> None:
    with pytest.raises(UnavailableError, match="GiB"):
        MODES["processes"](job(members=10**6))


def test_all_members_see_the_same_batches_and_have_their_own_start() -> None:
    given = job().task
    feed, again = Feed(given, torch.device("cpu")), Feed(given, torch.device("cpu"))
    assert torch.equal(feed(3)[0], again(BATCHES + 3)[0])
    assert not torch.equal(feed(3)[0], feed(4)[0])
    state = torch.random.get_rng_state()
    first, second = (given.member(seed) for seed in (0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


def test_learning_rates_are_spread_or_one() -> None:
    assert job(members=3).lrs == pytest.approx([3e-4, 9.4868e-4, 3e-3], rel=1e-4)
    assert job(members=1).lrs == replace(job(members=2), own_lr=False).lrs[:1] == [1e-3]


def test_stacked_adam_is_torch_adam_with_a_learning_rate_per_member() -> None:
    generator = torch.Generator().manual_seed(0)
    stacked = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    rows = [stacked[i].clone().requires_grad_() for i in range(3)]
    lrs = [1e-3, 1e-2, 0.1]
    mine = StackedAdam([stacked], lrs)
    theirs = [torch.optim.Adam([row], lr=lr) for row, lr in zip(rows, lrs, strict=True)]
    for _ in range(20):
        stacked.grad = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
        mine.step()
        for i, one in enumerate(theirs):
            rows[i].grad = stacked.grad[i]
            one.step()
    torch.testing.assert_close(stacked, torch.stack([r.detach() for r in rows]), rtol=1e-10, atol=1e-12)


def test_the_written_out_lstm_is_torchs() -> None:
    kernel, plain = nn.LSTM(3, 5).double(), WrittenOutLSTM(3, 5).double()
    plain.load_state_dict(kernel.state_dict())
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(plain(x)[0], kernel(x)[0], rtol=1e-12, atol=1e-12)


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(machine, "settle", lambda device, threads: [0])
    monkeypatch.setattr(machine, "others", lambda: 1.3)
    out = tmp_path / "none.jsonl"
    assert command.main(["--quick", "--device", "cpu", "--out", str(out)]) == command.BUSY
    assert "1.3 cores" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "mlp,elephant"], "elephant: not one of mlp, cnn"),
        (["--modes", "guess"], "guess: not one of serial"),
        (["--members", "0"], "numbers from 1 such as 1,8,32, or auto, or capacity; not '0'"),
        (["--threads", "x"], "a whole number from 1, not 'x'"),
        (["--device", "abacus"], "abacus is not here"),
        (["--resume"], "needs --out"),
        (["report", "nowhere.jsonl"], "nowhere.jsonl is not a file"),
        (["--out", "no/such/folder.jsonl"], "no/such is not a folder"),
        (["plot", "nowhere.jsonl"], "nowhere.jsonl is not a file"),
    ],
)
def test_what_the_command_does_not_understand_it_says(words: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_rows_that_a_file_has_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "half.jsonl"
    file.write_text(json.dumps(LINE) + "\n", encoding="utf-8")
    given = command.parse(["--models", "mlp", "--members", "2,8", "--resume", "--out", str(file), "--device", "cpu"])
    asked = []
    monkeypatch.setattr(command, "measure", lambda job, *_, **__: asked.append(job.members) or [LINE])
    monkeypatch.setattr(machine, "peaks", lambda *_: PEAKS)
    list(command.records(given, command.measured(file)))
    assert asked == [2]
    assert command.measured(tmp_path / "none") == {}


def test_auto_goes_on_where_a_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "half.jsonl"
    kept = [{**LINE, "members": m, "mode": "ours", "samples_per_s": rate} for m, rate in ((1, 10.0), (2, 20.0))]
    file.write_text("".join(json.dumps(line) + "\n" for line in kept) + '{"model": "ml', encoding="utf-8")
    given = command.parse(
        ["--models", LINE["model"], "--members", "auto", "--resume", "--out", str(file), "--device", "cpu"]
    )
    asked = []

    def measured(job: Job, *_: Any, **__: Any) -> list[dict[str, Any]]:
        asked.append(job.members)
        return [{**LINE, "members": job.members, "mode": "ours", "samples_per_s": 20.5}]

    monkeypatch.setattr(command, "measure", measured)
    monkeypatch.setattr(machine, "peaks", lambda *_: PEAKS)
    list(command.records(given, command.measured(file)))
    assert asked == [4, 8]


def test_a_row_that_fails_as_a_whole_is_told_and_the_next_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(job: Job, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if job.members == 2:
            raise RuntimeError("no such kernel")
        return [LINE]

    given = command.parse(["--models", "mlp", "--members", "2,8", "--modes", "ours", "--device", "cpu", "--quick"])
    monkeypatch.setattr(command, "measure", fails)
    monkeypatch.setattr(machine, "peaks", lambda *_: PEAKS)
    *told, last = command.records(given)
    assert last == LINE
    assert [(r["mode"], r["why"]) for r in told] == [
        (mode, "failed with RuntimeError: no such kernel") for mode in ("serial", "ours")
    ]
    assert "in fails" in told[0]["traceback"]
    assert command.shown(told[0])


@pytest.mark.long
def test_rounds_end_when_more_would_tell_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.suite.measure.LEAST_ROUNDS", 2)
    monkeypatch.setattr("benchmarks.suite.measure.SETTLED", 1e9)
    assert measure(job(), ["ours"], PEAKS, rounds=5, lap_s=0.001)[0]["rounds"] == 2
    monkeypatch.setattr("benchmarks.suite.measure.SETTLED", -1.0)
    assert measure(job(), ["ours"], PEAKS, rounds=5, lap_s=0.001)[1]["rounds"] == 5


def test_products_of_another_library_count_only_where_they_are_as_exact() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    with machine._another_library():
        pass
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    assert machine._as_exact(64)
    with torch.autocast("cpu", torch.bfloat16):
        assert not machine._as_exact(64)


def test_a_lap_goes_on_from_the_last_one() -> None:
    halves, whole = Ours(job()), Ours(job())
    laps: list[Lap] = [halves.lap(2), halves.lap(3)]
    together = laps[0].losses + laps[1].losses
    # The float32 kernels may be others by then.
    torch.testing.assert_close(torch.tensor(together), torch.tensor(whole.lap(5).losses))
    assert halves.done == 5
