"""Hyperparameters beyond the parameters' dtype end the member that has them, alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta

X, Y = torch.randn(16, 4), torch.randn(16, 2)
OPTIMIZERS = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    "Adafactor", "ByMember", "Muon",
)  # fmt: skip


def trained(name: str, lrs: list[float], dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    array = hfta.fuse([nn.Linear(4, 2, bias=False).to(dtype) for _ in lrs])
    if name == "ByMember":
        optimizer: Any = hfta.optim.ByMember(torch.optim.SGD, array, lr=lrs)
    else:
        optimizer = getattr(hfta.optim, name)(array, lr=lrs)
    x, y = X.to(dtype), Y.to(dtype)
    for _ in range(4):
        optimizer.zero_grad()
        if name == "LBFGS":
            optimizer.step(lambda: array.backward(F.mse_loss, x, y))
        else:
            array.backward(F.mse_loss, x, y)
            optimizer.step()
    return next(array.parameters()).detach()


@pytest.mark.only(lr=1e39)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("lr", [1e39, 1e308])
def test_the_other_members_train_on(name: str, lr: float) -> None:
    found = trained(name, [0.01, lr, 0.02], torch.float32)
    wanted = trained(name, [0.01, 0.03, 0.02], torch.float32)
    assert torch.allclose(found[[0, 2]], wanted[[0, 2]], rtol=1e-6, atol=1e-8)
    if name != "Adafactor":  # takes the smaller of lr and a bound
        assert not torch.isfinite(found[1]).any()


@pytest.mark.only(optimizer="rprop")
@pytest.mark.parametrize("optimizer", ["lbfgs", "rprop", "muon", "sgd"])
def test_a_study_tells_that_the_member_diverged(optimizer: str) -> None:
    lrs = [0.01, 1e39]
    study = hfta.Study(
        lambda **_: nn.Linear(4, 2, bias=False), {"lr": lrs}, (X, Y), loss="mse", epochs=1, optimizer=optimizer
    )
    results = study.fit(progress=False).sort_values("lr")
    assert list(results["state"]) == ["COMPLETE", "DIVERGED"]
