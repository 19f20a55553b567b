"""What can be iterated only once, and tensors without values, wherever a person gives values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import DataError, FusionError, HftaError, OptimError
from hfta_nb.optim import lr_scheduler

MEMBERS = 3


def once(*values: Any) -> Iterator[Any]:
    return (v for v in values)


def array(verify: str = "first") -> Any:
    torch.manual_seed(0)
    return hfta.fuse((nn.Linear(4, 2) for _ in range(MEMBERS)), verify=verify)


Scheduled = Callable[[Any, Callable[..., Any]], Any]

SCHEDULERS: dict[str, Scheduled] = {
    "milestones": lambda o, of: lr_scheduler.MultiStepLR(o, of(2, 4)),
    "milestones of members": lambda o, of: lr_scheduler.MultiStepLR(o, [of(1), of(2, 3), of(4)]),
    "milestones marked": lambda o, of: lr_scheduler.MultiStepLR(o, hfta.per_member(of(of(1), of(2, 3), of(4)))),
    "numbers": lambda o, of: lr_scheduler.StepLR(o, of(1, 2, 3), gamma=of(0.1, 0.2, 0.3)),
    "functions": lambda o, of: lr_scheduler.LambdaLR(o, of(lambda e: 0.9**e, lambda e: 0.8**e, lambda e: 0.7**e)),
    "factories": lambda o, of: lr_scheduler.ByMember(
        o, of(*[lambda p: torch.optim.lr_scheduler.StepLR(p, 2) for _ in range(MEMBERS)])
    ),
    "in turn": lambda o, of: lr_scheduler.SequentialLR(
        o, of(lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)), milestones=of(2)
    ),
    "chained": lambda o, of: lr_scheduler.ChainedScheduler(
        of(lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9))
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_of_generators_are_those_of_lists(name: str) -> None:
    lrs = []
    for of in (once, lambda *values: list(values)):
        optimizer = hfta.optim.SGD(array(), lr=0.1)
        scheduler = SCHEDULERS[name](optimizer, of)
        for _ in range(5):
            optimizer.step()
            scheduler.step()
        lrs.append(scheduler.get_last_lr())
    assert lrs[0] == lrs[1]
    assert lrs[0] != [[0.1] * MEMBERS]


@pytest.mark.parametrize("of", [once, lambda *v: dict.fromkeys(v).keys(), lambda *v: map(float, v)])
def test_values_of_generators_are_those_of_lists(of: Callable[..., Any]) -> None:
    given, grouped = array(), array()
    groups = [{"params": p, "weight_decay": of(0.0, 0.1, 0.2)} for p in grouped.parameters()]
    optimizers = [
        hfta.optim.SGD(array(), lr=of(0.1, 0.2, 0.3)),
        hfta.optim.ByMember(torch.optim.SGD, array(), lr=of(0.1, 0.2, 0.3)),
        hfta.optim.SGD(given, lr=of(0.1, 0.2, 0.3)),
        hfta.optim.SGD(groups, lr=of(0.1, 0.2, 0.3)),
    ]
    for optimizer in optimizers:
        for _ in range(2):  # each step reads them
            optimizer.step()
            assert optimizer.param_groups[-1]["lr"] == [0.1, 0.2, 0.3]
    assert optimizers[-1].param_groups[1]["weight_decay"] == [0.0, 0.1, 0.2]


def test_members_and_seeds_may_be_generators() -> None:
    dropout = hfta.fuse((nn.Dropout() for _ in range(2)), seeds=once(1, 2))
    torch.manual_seed(2)
    assert torch.equal(dropout(torch.ones(8))[1], nn.Dropout()(torch.ones(8)))
    assert len(array().select(once(0, 2))) == 2


def test_a_study_takes_generators() -> None:
    def build(**_: Any) -> nn.Module:
        return nn.Linear(4, 2)

    data = torch.randn(32, 4), torch.randn(32, 2)
    several = {"metrics": once("mae"), "monitor": once("val_mae", "val_loss"), "keep_checkpoints": once("best", "last")}
    study = hfta.Study(build, {"lr": once(0.1, 0.2)}, data, loss="mse", **several)  # type: ignore[arg-type]
    assert [v.config for v in study.variants] == [{"lr": 0.1}, {"lr": 0.2}]
    assert (study.monitor, study.keep_checkpoints) == ("val_mae", ("best", "last"))
    listed = hfta.Study(build, ({"lr": lr} for lr in (0.1, 0.2)), data, loss="mse")  # type: ignore[arg-type]
    assert [v.config for v in listed.variants] == [{"lr": 0.1}, {"lr": 0.2}]


X, Y = torch.randn(5, 4), torch.randn(5, 2)
NO_X, NO_Y = X.to("meta"), Y.to("meta")
META = torch.ones(MEMBERS, device="meta")

WITHOUT_VALUES: dict[str, tuple[type[HftaError], Callable[[Any], Any]]] = {
    "array(x)": (FusionError, lambda a: a(NO_X)),
    "per member": (FusionError, lambda a: a(hfta.per_member(torch.ones(MEMBERS, 5, 4, device="meta")))),
    "by name": (FusionError, lambda a: a(input=NO_X)),
    "backward": (FusionError, lambda a: a.backward(F.mse_loss, NO_X, Y)),
    "target": (FusionError, lambda a: a.backward(F.mse_loss, X, NO_Y)),
    "losses": (FusionError, lambda a: a.losses(F.mse_loss, a(X), NO_Y)),
    "evaluate": (FusionError, lambda a: a.evaluate(F.mse_loss, NO_X, Y)),
    "select": (FusionError, lambda a: a.select(META.long())),
    "load_member": (FusionError, lambda a: a.load_member(0, nn.Linear(4, 2, device="meta").state_dict())),
    "lr": (OptimError, lambda a: hfta.optim.SGD(a, lr=META)),
    "metrics": (OptimError, lambda a: lr_scheduler.ReduceLROnPlateau(hfta.optim.SGD(a, lr=0.1)).step(META)),
    "data": (DataError, lambda a: hfta.Study(lambda **_: nn.Linear(4, 2), {"lr": [0.1]}, (X, NO_Y), loss="mse")),
}


@pytest.mark.parametrize("calls_before", [0, 4])
@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_tensors_without_values_are_refused(name: str, verify: str, calls_before: int) -> None:
    fused, (kind, call) = array(verify), WITHOUT_VALUES[name]
    for _ in range(calls_before):
        fused(X)
        fused.backward(F.mse_loss, X, Y)
        fused.evaluate(F.mse_loss, X, Y)
    before = [p.clone() for p in fused.parameters()]
    with pytest.raises(kind):
        call(fused)
    assert all(map(torch.equal, before, fused.parameters()))


def test_members_without_values_take_inputs_without_values() -> None:
    fused = hfta.fuse([nn.Linear(4, 2, device="meta") for _ in range(MEMBERS)])
    assert fused(NO_X).shape == (MEMBERS, 5, 2)
    with pytest.raises(FusionError, match="none"):
        fused(X)
