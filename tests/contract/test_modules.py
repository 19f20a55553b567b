"""Every module of the table: fused equals serial."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from tests.contract.optim_serial import train_array
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import largest, loss_of, make, target_for, train_alone

MEMBERS = 3
SEEDS = [101, 102, 103]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}

rows = pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
blocks = pytest.mark.parametrize("block", [MEMBERS, 2, 1])


def _setup(row: ModuleRow, dtype: torch.dtype, device: torch.device, members: int = MEMBERS):
    modules = make(row.build, members, dtype, device)
    torch.manual_seed(0)
    x = row.x().to(device)
    x = x.to(dtype) if x.is_floating_point() else x
    y = target_for(modules[0], x)
    return modules, x, y


@pytest.mark.pairs
@pytest.mark.each("row")
@rows
@dtypes
@blocks
def test_forward_and_gradients(row: ModuleRow, dtype: torch.dtype, block: int, device: torch.device) -> None:
    modules, x, y = _setup(row, dtype, device)
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    losses = array.backward(loss_of, x, y)
    for i, module in enumerate(modules):
        torch.manual_seed(SEEDS[i])
        loss = loss_of(module(x), y)
        loss.backward()
        assert loss.item() == pytest.approx(losses[i].item(), abs=TOLERANCE[dtype])
        for name, p in module.named_parameters():
            fused = dict(array.named_parameters())[name]
            if p.grad is None:
                assert fused.grad is None
            else:
                torch.testing.assert_close(fused.grad[i], p.grad, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert largest(array, modules) <= TOLERANCE[dtype]  # buffers, and parameters that must not have changed


@rows
def test_split_form_gives_the_same_gradients(row: ModuleRow, device: torch.device) -> None:
    modules, x, y = _setup(row, torch.float64, device)
    whole, split = hfta.fuse(modules, SEEDS), hfta.fuse(modules, SEEDS)
    whole.backward(loss_of, x, y)
    ((split(x) - y) ** 2).flatten(1).mean(1).sum().backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), split.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=1e-10)


@pytest.mark.each("row")
@rows
@blocks
def test_twenty_steps(row: ModuleRow, block: int, device: torch.device) -> None:
    modules, x, y = _setup(row, torch.float64, device)
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    lrs = [1e-2, 3e-3, 1e-3]
    optimizer = hfta.optim.Adam(array, lr=lrs)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(array.backward(loss_of, x, y))
        optimizer.step()
    for i, module in enumerate(modules):
        alone = train_alone(module, SEEDS[i], 20, x, y, torch.optim.Adam(module.parameters(), lr=lrs[i]))
        assert [v[i].item() for v in losses] == pytest.approx(alone, abs=1e-9)
    assert largest(array, modules, row.noise) <= 1e-9


@rows
def test_evaluation_without_gradients(row: ModuleRow, device: torch.device) -> None:
    modules, x, _ = _setup(row, torch.float64, device)
    array = hfta.fuse(modules, SEEDS).eval()
    with torch.no_grad():
        out = array(x)
        for i, module in enumerate(modules):
            torch.manual_seed(SEEDS[i])
            torch.testing.assert_close(out[i], module.eval()(x), atol=1e-10, rtol=1e-10)


@rows
def test_order_of_members_does_not_matter(row: ModuleRow, device: torch.device) -> None:
    modules, x, y = _setup(row, torch.float64, device)
    turned = [2, 0, 1]
    straight = hfta.fuse(modules, SEEDS)
    other = hfta.fuse([modules[i] for i in turned], [SEEDS[i] for i in turned])
    a, b = straight.backward(loss_of, x, y), other.backward(loss_of, x, y)
    torch.testing.assert_close(a[turned], b, atol=1e-12, rtol=1e-12)
    for (_, p), (_, q) in zip(straight.named_parameters(), other.named_parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(p.grad[turned], q.grad, atol=1e-12, rtol=1e-12)


@rows
def test_one_member_is_the_plain_module(row: ModuleRow, device: torch.device) -> None:
    modules, x, y = _setup(row, torch.float64, device, members=1)
    array = hfta.fuse(modules, SEEDS[:1])
    loss = array.backward(loss_of, x, y)
    torch.manual_seed(SEEDS[0])
    alone = loss_of(modules[0](x), y)
    alone.backward()
    assert loss.item() == alone.item()
    for name, p in modules[0].named_parameters():
        if p.grad is not None:
            assert torch.equal(dict(array.named_parameters())[name].grad[0], p.grad)


@rows
def test_member_comes_back_as_it_went_in(row: ModuleRow, device: torch.device) -> None:
    modules, x, _ = _setup(row, torch.float64, device)
    array = hfta.fuse(modules, SEEDS)
    for i, module in enumerate(modules):
        back = array[i]
        assert type(back) is type(module)
        assert list(back.state_dict()) == list(module.state_dict())
        for key, value in module.state_dict().items():
            assert torch.equal(back.state_dict()[key], value)
        assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in module.parameters()]
        fresh = row.build().to(device, torch.float64)
        fresh.load_state_dict(back.state_dict())
        for m in (back, fresh, module):
            m.eval()
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        assert torch.equal(back(x), expected)
    with torch.no_grad():
        next(back.parameters()).zero_()
    assert all(
        torch.equal(p.detach(), q.detach()[i]) for p, q in zip(module.parameters(), array.parameters(), strict=True)
    )


@pytest.mark.each("row")
@rows
@blocks
def test_a_lost_member_harms_no_other(row: ModuleRow, block: int, device: torch.device) -> None:
    """Fifteen good members and a poisoned one: the good ones' bits are those of an array without poison."""
    modules, x, y = _setup(row, torch.float64, device)
    poisoned = copy.deepcopy(modules)
    first = next(p for p in poisoned[1].parameters() if p.requires_grad)
    with torch.no_grad():
        first.fill_(float("nan"))

    def trained(members: list[nn.Module]) -> FusedArray:
        array = hfta.fuse(members, SEEDS)
        array.block_size = block
        train_array(array, hfta.optim.AdamW(array, lr=1e-2), x, y, 3)
        return array

    good, bad = trained(modules), trained(poisoned)
    for (name, p), (_, q) in zip(good.state_dict().items(), bad.state_dict().items(), strict=True):
        for i in (0, 2):
            assert torch.equal(p[i], q[i]), name


@rows
def test_says_how_it_is_fused(row: ModuleRow) -> None:
    modules, x, y = _setup(row, torch.float64, torch.device("cpu"))
    array = hfta.fuse(modules, SEEDS)
    array.backward(loss_of, x, y)
    assert (array.block_size == MEMBERS) == row.fused
    assert bool(array.notes) == (not row.fused)
    if not row.fused:
        assert "one member at a time" in array.explain().to_string()
