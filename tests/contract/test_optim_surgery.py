"""An optimizer's state moves with its members: selected, joined, copied, reset."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import CPU, make_optimizer, setup, torch_optimizer, train_array, train_member
from tests.contract.serial import make

optimizers = pytest.mark.parametrize("row", OPTIMIZERS, ids=str)


def _setup(row: OptimizerRow):
    modules, _, _ = setup()
    array = hfta.fuse(modules)
    return modules, array, make_optimizer(row, array)


def _gradients(array) -> None:
    """The same for the same values, to the bit."""
    for p in array.parameters():
        p.grad = torch.cos(3 * p.detach())


def _train(array, optimizer, steps: int) -> None:
    def closure() -> torch.Tensor:
        _gradients(array)
        return sum(torch.sin(3 * p.detach()).flatten(1).sum(1) for p in array.parameters()) / 3

    for _ in range(steps):
        if isinstance(optimizer, hfta.optim.LBFGS):
            optimizer.step(closure)
        else:
            _gradients(array)
            optimizer.step()


def _same(array, other, indices) -> None:
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p[indices], q, atol=1e-12, rtol=1e-12)


@optimizers
def test_selected_and_joined(row: OptimizerRow) -> None:
    _, array, optimizer = _setup(row)
    _train(array, optimizer, 4)
    part, rest = array.select([2, 0]), array.select([1])
    few, one = optimizer.select([2, 0], part), optimizer.select([1], rest)
    both = hfta.join(part, rest)
    joined = few.join(one, both)
    for a, o in ((array, optimizer), (part, few), (both, joined)):
        _train(a, o, 4)
    _same(array, part, [2, 0])
    _same(array, both, [2, 0, 1])


@optimizers
def test_joined_with_a_beginner(row: OptimizerRow) -> None:
    """A member that begins while others have run already: its first step is a first step."""
    modules, array, optimizer = _setup(row)
    _train(array, optimizer, 4)
    newcomer = hfta.fuse([modules[1]])
    new = make_optimizer(OptimizerRow(row.name, row.alone(1)), newcomer)
    both = hfta.join(array, newcomer)
    joined = optimizer.join(new, both)
    for a, o in ((array, optimizer), (newcomer, new), (both, joined)):
        _train(a, o, 4)
    _same(both, array, [0, 1, 2])
    _same(both, newcomer, [3])


@optimizers
def test_copied_in_place(row: OptimizerRow) -> None:
    """Values, state and hyperparameters: from then on both go the same way, bit for bit."""
    _, array, optimizer = _setup(row)
    _train(array, optimizer, 4)
    where = [p.data_ptr() for p in array.parameters()]
    array.copy_member(0, 1)
    _train(array, optimizer, 4)
    assert where == [p.data_ptr() for p in array.parameters()]
    for p in array.parameters():
        assert torch.equal(p[0], p[1])
    for name in optimizer.kinds:
        values = optimizer.rows(0, name)
        assert values[0] == values[1]


@optimizers
def test_begun_anew(row: OptimizerRow) -> None:
    """A member loaded from a plain module starts as that module with a new optimizer; the others go on."""
    modules, array, optimizer = _setup(row)
    _, twin, other = _setup(row)
    _train(array, optimizer, 4)
    array.load_member(1, modules[1].state_dict())
    _train(array, optimizer, 3)
    _train(twin, other, 3)
    for p, q in zip(array.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p[1], q[1], atol=1e-12, rtol=1e-12)
    _train(twin, other, 4)
    for p, q in zip(array.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p[[0, 2]], q[[0, 2]], atol=1e-12, rtol=1e-12)


def test_a_member_that_begins_anew_with_another_lr() -> None:
    """Exploit and explore: a copy of the best, with its own learning rate."""
    row = OptimizerRow("Adam", {"lr": [0.1, 0.01, 0.05]})
    modules, array, optimizer = _setup(row)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    train_array(array, optimizer, x, y, 5)
    array.copy_member(2, 0)
    assert optimizer.param_groups[0]["lr"] == [0.05, 0.01, 0.05]
    optimizer.param_groups[0]["lr"][0] = 0.2
    train_array(array, optimizer, x, y, 5)
    own = torch_optimizer(row, modules[2], 2)
    train_member(modules[2], None, own, x, y, 5)
    own.param_groups[0]["lr"] = 0.2
    train_member(modules[2], None, own, x, y, 5)
    for p, q in zip(array.parameters(), modules[2].parameters(), strict=True):
        torch.testing.assert_close(p[0], q, atol=1e-10, rtol=0)


def test_parameters_keep_step_counts_of_their_own() -> None:
    """Where one had no gradient for a while: Adam's bias correction is that of its own updates."""
    row = OptimizerRow("Adam", {"lr": [0.1, 0.01, 0.05]})
    _, array, optimizer = _setup(row)
    for step in range(3):
        _gradients(array)
        if step < 2:
            array.get_parameter("0.weight").grad = None
        optimizer.step()
    part = array.select([2, 0])
    few, fresh = optimizer.select([2, 0], part), make_optimizer(row, twin := copy.deepcopy(array))
    fresh.load_state_dict(optimizer.state_dict())
    for a, o in ((array, optimizer), (part, few), (twin, fresh)):
        _train(a, o, 2)
    _same(array, part, [2, 0])
    _same(array, twin, [0, 1, 2])


def test_groups_come_along() -> None:
    _, array, _ = _setup(OptimizerRow("SGD"))
    p = dict(array.named_parameters())
    groups = [
        {"params": [("w", p["2.weight"])], "lr": [0.1, 0.2, 0.3], "momentum": 0.9},
        {"params": [("b", p["0.bias"])], "betas": 1},
    ]
    optimizer = hfta.optim.SGD(groups, lr=0.5)
    _train(array, optimizer, 3)
    part = array.select([1, 2])
    few = optimizer.select([1, 2], part)
    assert [g["param_names"] for g in few.param_groups] == [["w"], ["b"]]
    assert few.param_groups[0]["lr"] == [0.2, 0.3]
    assert (few.param_groups[0]["momentum"], few.param_groups[1]["lr"]) == (0.9, 0.5)
    few.add_param_group({"params": [("v", part.get_parameter("0.weight"))]})
    assert few.param_groups[2]["lr"] == 0.5
    _train(array, optimizer, 3)
    _train(part, few, 3)
    for name in ("2.weight", "0.bias"):
        assert torch.equal(part.get_parameter(name), p[name][[1, 2]])


def test_a_copy_has_an_array_of_its_own() -> None:
    _, array, optimizer = _setup(OptimizerRow("Adam", {"lr": [0.1, 0.01, 0.05]}))
    _train(array, optimizer, 2)
    kept = [p.detach().clone() for p in array.parameters()]
    other_array, other = copy.deepcopy((array, optimizer))
    assert other.array is other_array
    _train(other_array, other, 2)
    assert all(torch.equal(p, q) for p, q in zip(kept, array.parameters(), strict=True))
    _train(array, optimizer, 2)
    for p, q in zip(array.parameters(), other_array.parameters(), strict=True):
        assert torch.equal(p, q)


def test_what_does_not_fit() -> None:
    _, array, adam = _setup(OptimizerRow("Adam"))
    part = array.select([1, 2])
    other = hfta.fuse(make(lambda: nn.Linear(2, 2), 2, torch.float64, CPU))
    few = adam.select([1, 2], part)
    cases = [
        (lambda: adam.select([1], part), "another number of members"),
        (lambda: adam.select([1, 2], other), "the array lacks parameters"),
        (lambda: few.join(hfta.optim.SGD(array), hfta.join(part, array)), "another optimizer"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()


def test_an_array_does_not_keep_its_optimizers() -> None:
    _, array, optimizer = _setup(OptimizerRow("Adam"))
    scheduler = hfta.optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = hfta.optim.GradScaler(array)
    assert len(array.followers) == 2  # the scheduler comes along with its optimizer
    del optimizer, scheduler, scaler
    gc.collect()
    assert len(array.followers) == 0
    array.copy_member(0, 1)
