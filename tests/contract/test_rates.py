"""Learning rates on the device: schedules and assignments take effect in captured steps.

On a CPU, they are tested by optimizers that step as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step.graph import StepGraph
from tests.contract.captured_steps import ROW, StandIn, assert_same, batch, build

MEMBERS = 3


one_pass = pytest.mark.parametrize("made_by", ["chain"], indirect=True)


def _right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(-1) == target).double().mean()


def _pair(**row: Any) -> list[ArrayStep]:
    made = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([build() for _ in range(MEMBERS)], [1, 2, 3])
        rows = [{**ROW, **{k: v[i] if isinstance(v, list) else v for k, v in row.items()}} for i in range(MEMBERS)]
        step = ArrayStep(array, rows, nn.functional.cross_entropy, {"right": Metric(_right)}, 30)
        step.graph = StepGraph(StandIn(array.generators), step.tensors) if captured else None
        made.append(step)
    return made


def _train(steps: list[ArrayStep], numbers: range) -> None:
    for number in numbers:
        x, y = batch(number)
        scores = [step.train(x.float(), y) for step in steps]
        assert torch.equal(scores[0]["loss"], scores[1]["loss"]), number
    assert_same(*steps)


SCHEDULES: dict[str, dict[str, Any]] = {
    "step": {"lr_scheduler": "step", "step_size": [1, 2, 2], "gamma": [0.5, 0.5, 0.9]},  # two agree at first
    "cosine": {"lr_scheduler": "cosine", "t_max": [None, 20, 5], "eta_min": 0.0},
}


@pytest.mark.usefixtures("made_by")
@one_pass
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_is_captured_once_whatever_the_schedule(schedule: str, optimizer: str) -> None:
    pair = _pair(optimizer=optimizer, **SCHEDULES[schedule])
    _train(pair, range(12))
    for epoch in range(8):
        for step in pair:
            step.end_epoch()
        _train(pair, range(100 + 3 * epoch, 103 + 3 * epoch))
    assert len(pair[0].graph.backend.made) == 1
    last = [step.updates[0].lr_scheduler.get_last_lr() for step in pair]
    assert last[0] == last[1]


@pytest.mark.usefixtures("made_by")
@one_pass
def test_a_learning_rate_that_is_assigned_counts_at_once() -> None:
    pair = _pair(**SCHEDULES["cosine"])
    _train(pair, range(12))
    for step in pair:
        step.updates[0].optimizer.param_groups[0]["lr"] = [0.3, 0.2, 0.1]
    _train(pair, range(12, 15))
    for step in pair:
        step.end_epoch()
    _train(pair, range(15, 18))
    assert len(pair[0].graph.backend.made) == 1


def _cloned(step: ArrayStep) -> ArrayStep:
    step.array.copy_member(2, 0)
    return step


def _fewer(step: ArrayStep) -> ArrayStep:
    other = step.select([2, 0])
    other.graph = StepGraph(StandIn(other.array.generators), other.tensors) if step.graph is not None else None
    return other


def _resumed(step: ArrayStep) -> ArrayStep:
    step.load_state(step.state())
    return step


@pytest.mark.usefixtures("made_by")
@one_pass
@pytest.mark.parametrize("change", [_cloned, _fewer, _resumed], ids=lambda f: f.__name__.strip("_"))
def test_surgery_takes_the_schedules_along(change: Callable[[ArrayStep], ArrayStep]) -> None:
    pair = _pair(**SCHEDULES["step"])
    _train(pair, range(12))
    pair = [change(step) for step in pair]
    for epoch in range(4):
        for step in pair:
            step.end_epoch()
        _train(pair, range(100 + 4 * epoch, 104 + 4 * epoch))
    told = [step.updates[0].lr_scheduler.get_last_lr() for step in pair]
    assert told[0] == told[1] == [step.updates[0].optimizer.rows(0, "lr") for step in pair[:1]]
    assert pair[0].graph.notes() == ["captured as one graph"]
