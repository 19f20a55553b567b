"""`optimizer.param_groups` as torch's users change it, where values are one per member."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError

LRS = [0.1, 0.2, 0.3]
STEPS = 8


def by_member(array: hfta.FusedArray, **settings: Any) -> hfta.optim.ByMember:
    return hfta.optim.ByMember(torch.optim.SGD, array, **settings)


def modules() -> list[nn.Module]:
    found = []
    for seed in range(len(LRS)):
        torch.manual_seed(seed)
        found.append(nn.Linear(4, 2).double())
    return found


def shrink(group: Any, step: int) -> None:
    group["lr"] *= 0.9


def calculate(group: Any, step: int) -> None:
    group["lr"] = 0.5 * group["lr"] / 2 + 0.01 - -(group["lr"] ** 2)
    group["momentum"] -= 0.01


def fall_back(group: Any, step: int) -> None:
    group["lr"] = 0.05 if step == 3 else group["lr"] * 2


def warm_up(group: Any, step: int) -> None:
    group["lr"] = group.setdefault("initial_lr", group["lr"]) * min(1.0, (step + 1) / 4)


@pytest.mark.pairs
@pytest.mark.parametrize("change", [shrink, calculate, fall_back, warm_up])
@pytest.mark.parametrize("made", [hfta.optim.SGD, by_member])
@pytest.mark.parametrize("lr", [LRS, hfta.per_member(LRS), tuple], ids=["list", "per_member", "later"])
def test_a_loop_of_groups_changes_each_member(made: Any, change: Callable[[Any, int], None], lr: Any) -> None:
    x, y = torch.randn(8, 4).double(), torch.randn(8, 2).double()
    array = hfta.fuse(modules())
    optimizer = made(array, lr=1.0 if lr is tuple else lr, momentum=0.9)
    if lr is tuple:
        optimizer.param_groups[0]["lr"] = list(LRS)
    alone = [(m, torch.optim.SGD(m.parameters(), lr=v, momentum=0.9)) for m, v in zip(modules(), LRS, strict=True)]
    for step in range(STEPS):
        optimizer.zero_grad()
        array.backward(F.mse_loss, x, y)
        optimizer.step()
        for module, own in alone:
            own.zero_grad()
            F.mse_loss(module(x), y).backward()
            own.step()
        for one in (optimizer, *(own for _, own in alone)):
            for group in one.param_groups:
                change(group, step)
    for i, (module, _) in enumerate(alone):
        torch.testing.assert_close(array[i].weight, module.weight, rtol=1e-10, atol=1e-10)


def test_they_are_lists_otherwise() -> None:
    optimizer = hfta.optim.SGD(hfta.fuse(modules()), lr=LRS)
    group = optimizer.param_groups[0]
    assert group["lr"] == LRS
    assert isinstance(group["lr"], list)
    assert repr(group["lr"]) == "[0.1, 0.2, 0.3]"
    group["lr"][1] = 0.5
    assert optimizer.state_of(1)["param_groups"][0]["lr"] == 0.5
    for other in ([1, 2, 3], np.array([1, 2, 3]), torch.tensor([1, 2, 3])):
        assert group["lr"] * other == [0.1, 1.0, pytest.approx(0.9)]
    assert copy.deepcopy(optimizer).param_groups[0]["lr"] == group["lr"]
    assert pickle.loads(pickle.dumps(group))["lr"] == group["lr"]  # noqa: S301
    kept = io.BytesIO()
    torch.save(optimizer.state_dict(), kept)
    kept.seek(0)
    optimizer.load_state_dict(torch.load(kept, weights_only=True))
    group["lr"] *= 2
    assert group["lr"] == [0.2, 1.0, 0.6]


@pytest.mark.parametrize("use", [lambda lr: max(lr * 0.9, 1e-6), float, lambda lr: lr > 0.1, lambda lr: lr * [1, 2]])
def test_what_needs_one_number_says_how(use: Callable[[Any], Any]) -> None:
    optimizer = hfta.optim.SGD(hfta.fuse(modules()), lr=LRS)
    with pytest.raises(OptimError, match="one value per member"):
        use(optimizer.param_groups[0]["lr"])
