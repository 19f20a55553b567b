"""What the user writes to the state of an array's optimizer, against the same writing to torch's optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.handed_over import numbers

X, Y = numbers(12, 4), numbers(12, 1, seed=1)
LRS = [0.01, 0.02, 0.05]


def modules(*widths: int) -> list[nn.Module]:
    found: list[nn.Module] = []
    for seed, width in enumerate(widths):
        torch.manual_seed(seed)
        found.append(nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).double())
    return found


def _each(write: Callable[[dict[str, Any]], None]) -> Callable[[Any, Any], None]:
    def written(optimizer: Any, parameters: Any) -> None:
        for p in parameters:
            write(optimizer.state[p])

    return written


WRITTEN: dict[str, Callable[[Any, Any], None]] = {
    "cleared": lambda o, _: o.state.clear(),
    "another dict": lambda o, _: setattr(o, "state", defaultdict(dict)),
    "an entry removed": lambda o, parameters: o.state.pop(next(iter(parameters))),
    "moments in place": _each(lambda entry: entry["exp_avg"].zero_()),
    "other moments": _each(lambda entry: entry.update(exp_avg=torch.full_like(entry["exp_avg"], 0.1))),
    "steps": _each(lambda entry: entry["step"].fill_(1)),
}


@pytest.mark.parametrize("widths", [(5, 5, 5), (4, 5, 6)], ids=["alike", "unlike"])
@pytest.mark.parametrize("kind", ["Adam", "ByMember"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_to_the_state_counts(name: str, kind: str, widths: tuple[int, ...]) -> None:
    if "moments" in name and kind == "ByMember" and len(set(widths)) > 1:
        pytest.skip("members' tensors have several shapes")
    array, plain = hfta.fuse(modules(*widths)), modules(*widths)
    ours = hfta.optim.Adam(array, lr=LRS) if kind == "Adam" else hfta.optim.ByMember(torch.optim.Adam, array, lr=LRS)
    theirs = [torch.optim.Adam(m.parameters(), lr=lr) for m, lr in zip(plain, LRS, strict=True)]
    for step in range(4):
        array.zero_grad()
        array.backward(F.mse_loss, X, Y)
        ours.step()
        for module, alone in zip(plain, theirs, strict=True):
            alone.zero_grad()
            F.mse_loss(module(X), Y).backward()
            alone.step()
        if step == 1:
            WRITTEN[name](ours, array.parameters())
            for module, alone in zip(plain, theirs, strict=True):
                WRITTEN[name](alone, module.parameters())
    for i, module in enumerate(plain):
        for p, q in zip(array[i].parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_state_that_is_of_no_member_is_refused() -> None:
    array = hfta.fuse(modules(5, 5, 5))
    optimizer = hfta.optim.Adam(array, lr=0.01)
    array.backward(F.mse_loss, X, Y)
    optimizer.step()
    p = next(array.parameters())
    optimizer.state[p]["step"] = torch.zeros(len(array))
    with pytest.raises(OptimError, match="a step count of 0 beside other state"):
        optimizer.step()
    assert optimizer.state[p]["step"].tolist() == [1, 1, 1]
    optimizer.state[p] = {"exp_avg": torch.zeros(p.shape[1:], dtype=p.dtype)}
    with pytest.raises(OptimError, match="no state of all members"):
        optimizer.step()
