"""Learning rates on the device: precomputed values equal torch's schedules, and other changes take effect.

On a CPU, the tables are tested by optimizers that step as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.models.metrics import Metric
from hfta_nb.optim.rate_tables import ROWS, Rates, foreseen
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step.graph import StepGraph
from tests.contract.captured_steps import ROW, StandIn, assert_same, batch, build

MEMBERS = 3
LRS = [0.1, 0.02, 0.003]
schedulers = hfta.optim.lr_scheduler


def _optimizer(kind: Any = hfta.optim.SGD, **settings: Any) -> hfta.optim.ArrayOptimizer:
    array = hfta.fuse([nn.Linear(2, 1) for _ in range(MEMBERS)])
    optimizer: hfta.optim.ArrayOptimizer = kind(array, lr=LRS, **settings)
    return optimizer


def _sequence(o: Any) -> Any:
    parts = [schedulers.LinearLR(o, 0.1, total_iters=[3, 4, 5]), schedulers.ExponentialLR(o, gamma=0.9)]
    return schedulers.SequentialLR(o, parts, milestones=[4])


def _chain(o: Any) -> Any:
    return schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.5, 3), schedulers.StepLR(o, [2, 3, 4], 0.5)])


KNOWN: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, step_size=[2, 3, 7], gamma=[0.5, 0.1, 0.9]),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, milestones=[[2, 5], [3], [4, 9]]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, factor=[0.5, 0.3, 0.1]),
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=[5, 10, 80]),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, gamma=[0.9, 0.99, 0.5]),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=[10, 20, 90], power=[1.0, 2.0, 0.5]),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=[10, 20, 100], eta_min=[0.0, 1e-3, 0.0]),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=[5, 7, 9], T_mult=[1, 2, 1]),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=[0.1, 0.2, 0.3], total_steps=90, cycle_momentum=False),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, [0.1, 0.2, 0.3], step_size_up=5, cycle_momentum=False),
    "SequentialLR": _sequence,
    "ChainedScheduler": _chain,
    "ByMember": lambda o: schedulers.ByMember(
        o,
        [
            lambda c: torch.optim.lr_scheduler.StepLR(c, 3),
            lambda c: torch.optim.lr_scheduler.ExponentialLR(c, 0.9),
            lambda c: torch.optim.lr_scheduler.CosineAnnealingLR(c, 30),
        ],
    ),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_what_is_foreseen_is_what_comes_to_the_bit(kind: str) -> None:
    optimizer = _optimizer()
    scheduler = KNOWN[kind](optimizer)
    for _ in range(2):
        scheduler.step()
    before = [scheduler.state_dict(), [list(g["lr"]) for g in optimizer.param_groups]]
    rows = foreseen(optimizer, 0, ROWS)
    assert [scheduler.state_dict(), [list(g["lr"]) for g in optimizer.param_groups]] == before  # nothing has moved
    assert len(rows) == ROWS
    for row in rows:
        scheduler.step()
        assert optimizer.rows(0, "lr") == row


def test_what_can_t_be_known_is_not_foreseen() -> None:
    called = []

    def decays(epoch: int) -> float:
        called.append(epoch)
        return 0.5**epoch

    unknown: list[Callable[[Any], Any]] = [
        lambda o: schedulers.LambdaLR(o, decays),
        lambda o: schedulers.MultiplicativeLR(o, decays),
        lambda o: schedulers.ReduceLROnPlateau(o),
        lambda o: schedulers.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 1.0, cycle_momentum=False),
        lambda o: [schedulers.StepLR(o, 3), schedulers.StepLR(o, 4)],  # which of them comes next is a person's affair
    ]
    for make in unknown:
        optimizer = _optimizer()
        kept = make(optimizer)
        times = len(called)
        assert foreseen(optimizer, 0, 10) == [], kept
        assert len(called) == times
    assert foreseen(_optimizer(), 0, 10) == []  # no schedule


def test_a_schedule_that_ends_or_moves_momentum_is_foreseen_up_to_there() -> None:
    optimizer = _optimizer()
    kept = schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=[6, 9, 12], cycle_momentum=False)
    for row in foreseen(optimizer, 0, 20):
        kept.step()
        assert optimizer.rows(0, "lr") == row
    with pytest.raises(ValueError, match="total"):  # of the first member, which has the fewest
        kept.step()
    optimizer = _optimizer(momentum=0.9)
    kept = schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    assert foreseen(optimizer, 0, 20) == []
    assert kept is not None


def test_of_several_groups_each_has_its_own() -> None:
    array = hfta.fuse([nn.Linear(2, 1) for _ in range(MEMBERS)])
    weight, bias = array.parameters()
    optimizer = hfta.optim.SGD([{"params": [weight], "lr": LRS}, {"params": [bias], "lr": 1.0}])
    scheduler = schedulers.ExponentialLR(optimizer, gamma=0.5)
    first, second = foreseen(optimizer, 0, 3), foreseen(optimizer, 1, 3)
    for one, other in zip(first, second, strict=True):
        scheduler.step()
        assert (optimizer.rows(0, "lr"), optimizer.rows(1, "lr")) == (one, other)


def _now(table: Rates) -> list[float]:
    table.take()
    return list(table.now.tolist())


def test_a_table_is_sent_once_for_what_was_foreseen(device: torch.device) -> None:
    rows = [[0.5**k, 0.9**k, 0.1] for k in range(40)]
    table = Rates(rows[0], device, lambda count: rows[1 : 1 + count])
    for row in rows:
        table.go(row)
        assert _now(table) == row
    assert table.sent == 1
    table.go(rows[-1])  # two steps of training between two of the schedule
    assert table.sent == 1


def test_what_comes_otherwise_is_sent(device: torch.device) -> None:
    asked = []

    def foresee(count: int) -> list[list[float]]:
        asked.append(count)
        return [[0.5, 0.5]] * min(count, 5)

    table = Rates([1.0, 1.0], device, foresee)
    for k in range(6):
        row = [0.1 * k, 0.2]
        table.go(row)
        assert _now(table) == row
    assert table.sent == 7
    assert len(asked) < 5  # after some disappointments nothing is foreseen any more


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
