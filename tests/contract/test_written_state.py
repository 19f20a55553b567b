"""What the user writes to the state of an optimizer, and what functions of lr schedulers keep, as with torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as theirs

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from hfta_nb.optim import lr_scheduler as ours
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


@pytest.mark.pairs
@pytest.mark.parametrize("widths", [(5, 5, 5), (4, 5, 6)], ids=["alike", "unlike"])
@pytest.mark.parametrize("kind", ["Adam", "ByMember"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_to_the_state_counts(name: str, kind: str, widths: tuple[int, ...]) -> None:
    if "moments" in name and kind == "ByMember" and len(set(widths)) > 1:
        pytest.skip("members' tensors have several shapes")
    array, plain = hfta.fuse(modules(*widths)), modules(*widths)
    fused = hfta.optim.Adam(array, lr=LRS) if kind == "Adam" else hfta.optim.ByMember(torch.optim.Adam, array, lr=LRS)
    plain_optimizers = [torch.optim.Adam(m.parameters(), lr=lr) for m, lr in zip(plain, LRS, strict=True)]
    for step in range(4):
        array.zero_grad()
        array.backward(F.mse_loss, X, Y)
        fused.step()
        for module, alone in zip(plain, plain_optimizers, strict=True):
            alone.zero_grad()
            F.mse_loss(module(X), Y).backward()
            alone.step()
        if step == 1:
            WRITTEN[name](fused, array.parameters())
            for module, alone in zip(plain, plain_optimizers, strict=True):
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


class Counting:
    """A factor that rises with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return min(1.0, self.calls / 6)


def by_closure() -> Callable[[int], float]:
    counting = Counting()
    return lambda step: counting(step)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "object": (lambda o: ours.LambdaLR(o, Counting()), lambda o: theirs.LambdaLR(o, Counting())),
    "closure": (lambda o: ours.MultiplicativeLR(o, by_closure()), lambda o: theirs.MultiplicativeLR(o, by_closure())),
    "in a sequence": (
        lambda o: ours.SequentialLR(o, [ours.LambdaLR(o, Counting()), ours.ConstantLR(o, 0.5)], [4]),
        lambda o: theirs.SequentialLR(o, [theirs.LambdaLR(o, Counting()), theirs.ConstantLR(o, 0.5)], [4]),
    ),
    "by member": (
        lambda o: ours.ByMember(o, lambda q, f=by_closure(): theirs.LambdaLR(q, f)),  # noqa: B008
        lambda o: theirs.LambdaLR(o, by_closure()),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_functions_of_schedulers_count_the_calls_of_each_member(name: str) -> None:
    array, alone = hfta.fuse(modules(5, 5, 5)), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer = hfta.optim.SGD(array, lr=0.1)
    make, make_alone = SCHEDULES[name]
    schedule, schedule_alone = make(optimizer), make_alone(alone)
    for step in range(8):
        if step == 3:
            optimizer.copy_member(0, 1)
        assert schedule.get_last_lr()[0] == pytest.approx([alone.param_groups[0]["lr"]] * 3)
        optimizer.step()
        alone.step()
        schedule.step()
        schedule_alone.step()
