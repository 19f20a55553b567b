"""The serial time that an array is compared with: the same members, each at its own size."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.train import speed
from hfta_nb.train.speed import SpeedProbe

GRID = {"width": [4, 32], "lr": [1e-3, 1e-2]}


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_plain_modules_of_each_architecture_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[int, int]]] = []
    alone = SpeedProbe.alone

    def spied(self: SpeedProbe, x: Any, y: Any) -> bool:
        seen.append([(size(twin.module), members) for twin, members in self.twins])
        return alone(self, x, y)

    monkeypatch.setattr(SpeedProbe, "alone", spied)
    study = hfta.Study("mlp", GRID, "iris", epochs=2, batch_size=8, padding=0.95, device="cpu", directory=tmp_path)
    study.fit(progress=False)
    assert len(study.plan_groups) == 1
    narrow, wide = (size(study.member(v).module()) for v in (0, 2))
    assert seen[0] == [(narrow, 2), (wide, 2)]
    assert study.speedup().loc["0", "members"] == 4


def test_the_time_one_after_another_is_the_sum_over_members(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(speed, "time", types.SimpleNamespace(perf_counter=lambda: now[0], time=lambda: now[0]))

    class Twin:
        def __init__(self, cost_s: float) -> None:
            self.cost_s = cost_s

        def train(self, x: Any, y: Any) -> None:
            now[0] += self.cost_s

        def evaluate(self, x: Any, y: Any) -> None:
            now[0] += self.cost_s / 2

        def watch(self) -> None:
            now[0] += 0.1  # which a loop of one's own does not do

    class FakeStep:
        array = types.SimpleNamespace(generators=types.SimpleNamespace(device=torch.device("cpu")))

        def __len__(self) -> int:
            return 5

    twins: Any = [(Twin(1.0), 3), (Twin(10.0), 2)]
    step: Any = FakeStep()
    probe = SpeedProbe(0, step, twins, held_out=40)
    assert not probe.alone(torch.zeros(10, 1), None)
    assert probe.serial_s == pytest.approx([22.5])
    assert probe.validation_s == pytest.approx([4 * 11.0])  # four batches of ten
    probe = SpeedProbe(0, step, twins)
    probe.alone(torch.zeros(10, 1), None)
    assert math.isnan(speed._least(probe.validation_s))  # of a stream without a known length


def test_the_fastest_of_each_kind_count_as_a_busy_machine_slows_some() -> None:
    class FakeStep:
        array = types.SimpleNamespace(
            generators=types.SimpleNamespace(device=torch.device("cpu")), threads="kernels", block_size=2,
            step_notes=(), compiling="never",
            _calls=types.SimpleNamespace(steps=types.SimpleNamespace(programs=list, decisions=list)),
        )  # fmt: skip

        def __len__(self) -> int:
            return 2

    step: Any = FakeStep()
    probe = SpeedProbe(0, step, [])
    probe.fused_s, probe.serial_s, probe.validation_s = [9.0, 9.0, 1.0, 3.0, 4.0], [8.0, 2.0, 7.0], [6.0, 5.0]
    found = probe.event()
    assert (found.step_s, found.serial_step_s, found.speedup, found.serial_validation_s) == (1.0, 2.0, 2.0, 5.0)


def test_the_whole_run_is_predicted_and_measured(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=4, batch_size=8, device="cpu", directory=tmp_path)
    study.fit(progress=False)
    table, measured = study.speedup(), study.history.speeds[0]
    whole, array = table.loc["all"], table.loc["0"]
    made_s = 4 * (15 * measured.serial_step_s + measured.serial_validation_s)
    assert whole["serial_run_s"] == pytest.approx(made_s)
    assert whole["run_s"] == pytest.approx(study.history.took_s)
    assert whole["speedup"] == pytest.approx(whole["serial_run_s"] / whole["run_s"])
    assert whole["step_speedup"] == array["step_speedup"] == pytest.approx(measured.speedup)
    assert math.isnan(array["run_s"])
    begin, end = (e.time_s for e, _ in study.store.events() if isinstance(e, ev.RunStarted | ev.RunChanged))
    assert whole["run_s"] == pytest.approx(end - begin)


def test_a_plain_module_that_raises_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(self: SpeedProbe, x: Any, y: Any) -> bool:
        raise ValueError("its third call is one too many")

    monkeypatch.setattr(SpeedProbe, "alone", alone)
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=2, device="cpu", directory=tmp_path)
    study.fit(progress=False)
    assert study.history.state == ev.COMPLETE
    assert not study.history.speeds


def test_some_steps_are_timed_later() -> None:
    class FakeStep:
        array = types.SimpleNamespace(generators=types.SimpleNamespace(device=torch.device("cpu")))

        def __len__(self) -> int:
            return 2

    step: Any = FakeStep()
    probe = SpeedProbe(0, step, [])
    timed = []
    for number in range(1, 200):
        if probe.due(step):
            timed.append(number)
            probe.alone(torch.zeros(1), None)
    assert timed == [1, 2, 3, 4, 5, 8, 16, 32, 64, 128]
    assert not SpeedProbe(0, step, []).due(FakeStep())  # type: ignore[arg-type]  # the array was built anew
