"""Lr schedulers as people write them, for each member."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.handed_optimizers import (
    LRS,
    SEEDS,
    TimmScheduler,
    X,
    Y,
    build,
    fused,
    schedulers,
    train,
)


@pytest.mark.parametrize("by_update", [False, True], ids=["epochs", "updates"])
@pytest.mark.parametrize("one", [True, False], ids=["one function", "a list"])
def test_schedulers_like_timm_s(by_update: bool, one: bool) -> None:
    array = fused()
    optimizer = hfta.optim.SGD(array, lr=LRS)
    makers = [lambda o, w=w: TimmScheduler(o, w, by_update) for w in (3, 3 if one else 5, 3 if one else 7)]
    scheduler = hfta.optim.lr_scheduler.ByMember(optimizer, makers[0] if one else makers)
    modules = list(array)
    alone = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(modules, LRS, strict=True)]
    own = [make(o) for make, o in zip(makers, alone, strict=True)]
    metrics = [[3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [1.0, 1.5, 3.0]]
    for epoch in range(3):
        scheduler.step_update(num_updates=2 * epoch + 1)
        scheduler.step(epoch + 1, torch.tensor(metrics[epoch]))
        for i, each in enumerate(own):
            each.step_update(num_updates=2 * epoch + 1)
            each.step(epoch + 1, metrics[epoch][i])
        if epoch == 1:
            part = array.select([0, 1, 2])
            optimizer = optimizer.select([0, 1, 2], part)
            scheduler = scheduler.select([0, 1, 2], optimizer)
        assert scheduler.get_last_lr() == [[o.param_groups[0]["lr"] for o in alone]]
        assert optimizer.rows(0, "lr") == [o.param_groups[0]["lr"] for o in alone]
    with pytest.raises(OptimError, match="not one value per member"):
        scheduler.step(4, [0.1, 0.2])


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    "epoch", [(7, 8, 12), [7, 8, 12], torch.tensor([7, 8, 12]), 9], ids=["tuple", "list", "tensor", "one"]
)
@pytest.mark.parametrize(
    "make",
    [lambda o: torch.optim.lr_scheduler.StepLR(o, 4), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
     lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.9**e)],
    ids=["StepLR", "Cosine", "LambdaLR"],
)  # fmt: skip
def test_to_an_epoch_of_one_s_own(make: Any, epoch: Any) -> None:
    optimizer = hfta.optim.SGD(fused(), lr=LRS)
    scheduler = hfta.optim.lr_scheduler.ByMember(optimizer, make)
    with pytest.warns(UserWarning, match="epoch parameter in `scheduler.step") as told:
        scheduler.step(epoch=epoch)
    assert len(told) == 1
    scheduler.step()
    for i, lr in enumerate(LRS):
        alone = torch.optim.SGD([torch.zeros(1)], lr=lr)
        own = make(alone)
        alone.step()
        own.step(epoch=epoch if isinstance(epoch, int) else int(epoch[i]))
        own.step()
        assert optimizer.rows(0, "lr")[i] == pytest.approx(alone.param_groups[0]["lr"], abs=1e-15)


class Reading:
    """A scheduler that looks at what its optimizer trains, or has it step."""

    def __init__(self, optimizer: torch.optim.Optimizer, what: str) -> None:
        self.optimizer, self.what = optimizer, what

    def step(self) -> None:
        p = self.optimizer.param_groups[0]["params"][0]
        if self.what == "state":
            self.optimizer.state[p].get("momentum_buffer")
        elif self.what == "step":
            self.optimizer.step()
        else:
            self.optimizer.param_groups[0]["lr"] = float(p.norm() if self.what == "parameter" else p.grad.norm())


@pytest.mark.parametrize("what", ["state", "step", "parameter", "gradient"])
def test_a_scheduler_that_reads_more_than_values_is_refused(what: str) -> None:
    scheduler = hfta.optim.lr_scheduler.ByMember(hfta.optim.SGD(fused(), momentum=0.9), lambda o: Reading(o, what))
    with pytest.raises(OptimError, match=r"an lr scheduler that (reads|steps) the optimizer.*assign them"):
        scheduler.step()


@pytest.mark.parametrize("make", [lambda o: schedulers.MultiplicativeLR(o, lambda epoch: None),
                                  lambda o: schedulers.LambdaLR(o, lambda epoch: [1.0, 0.5][epoch]),
                                  lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=2),
                                  lambda o: torch.optim.lr_scheduler.SequentialLR(o, [schedulers.StepLR(o, 1)], [])],
                         ids=["None", "function", "ended", "torch's"])  # fmt: skip
def test_errors_of_schedulers_are_typed_and_change_no_value(make: Any) -> None:
    optimizer = hfta.optim.SGD(fused(), lr=LRS, momentum=0.9)
    before = dict(optimizer.param_groups[0])
    with pytest.raises(OptimError, match=r"(LR.step, member 0|SequentialLR): "):  # noqa: PT012
        scheduler = make(optimizer)
        for _ in range(3):
            before = dict(optimizer.param_groups[0])
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == before["lr"]


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Rprop", "Adafactor"])
def test_a_member_whose_schedule_overflows_diverges_alone(kind: str) -> None:
    array, gammas = fused(), [0.5, 1e308, 1.0]
    optimizer = getattr(hfta.optim, kind)(array, lr=LRS)
    scheduler = schedulers.StepLR(optimizer, 1, gamma=gammas)
    for _ in range(8):
        train(array, optimizer, steps=1)
        scheduler.step()
    assert optimizer.rows(0, "lr")[1] == float("inf")
    for i, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        module = build()
        torch.manual_seed(seed)
        alone = getattr(torch.optim, kind)(module.parameters(), lr=LRS[i])
        schedule = torch.optim.lr_scheduler.StepLR(alone, 1, gamma=gammas[i])
        for _ in range(8):
            alone.zero_grad()
            nn.functional.mse_loss(module(X), Y).backward()
            alone.step()
            schedule.step()
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=1e-10, atol=1e-10, equal_nan=True)
