"""Members of different architectures in one array: fused equals serial."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from tests.contract.across_rows import ROWS, AcrossRow
from tests.contract.optim_serial import train_array
from tests.contract.serial import loss_of, target_for, train_alone

rows = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
TOLERANCE = 1e-10


def _setup(row: AcrossRow, device: torch.device) -> tuple[list[nn.Module], list[int], Tensor, Tensor]:
    modules = row.modules(device)
    torch.manual_seed(0)
    x = row.x().to(device)
    return modules, row.seeds, x, target_for(modules[0], x)


def _close(got: Tensor, expected: Tensor, what: str) -> None:
    tolerance = 1e-8 if expected.is_cuda else TOLERANCE  # sums of atomic additions, in another order each time
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, msg=lambda m: f"{what}: {m}")


def _grads(array: FusedArray, i: int) -> dict[str, Tensor]:
    """A member's gradients by its own names: those of an array whose values are the gradients."""
    with torch.no_grad():
        kept = {n: p.detach().clone() for n, p in array.named_parameters()}
        for p in array.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        found = {n: p.detach() for n, p in array[i].named_parameters()}
        for n, p in array.named_parameters():
            p.copy_(kept[n])
    return found


def _padding_is_zero(array: FusedArray) -> None:
    tensors = dict(array.named_parameters()) | dict(array.named_buffers())
    for name, own in array.owned.items():
        value = tensors[name]
        assert not value.detach()[~own.to(value.device)].any(), name
        if value.grad is not None:
            assert not value.grad[~own.to(value.device)].any(), name


@pytest.mark.each("row", every=2)
@rows
@pytest.mark.parametrize("block", ["all", 2, 1])
def test_forward_and_gradients(row: AcrossRow, block: Any, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    array = hfta.fuse(modules, seeds)
    array.block_size = len(modules) if block == "all" else block
    losses = array.backward(loss_of, x, y)
    # On a GPU dropout of half a tensor draws as its memory has gaps alone, which padded halves have not.
    assert not array.notes or (device.type == "cuda" and row.name == "causal decoder")
    for i, module in enumerate(modules):
        torch.manual_seed(seeds[i])
        loss = loss_of(module(x), y)
        loss.backward()
        _close(losses[i], loss.detach(), f"loss of member {i}")
        grads = _grads(array, i)
        for name, p in module.named_parameters():
            _close(grads[name], torch.zeros_like(p) if p.grad is None else p.grad, f"member {i}, {name}")
        own = dict(array[i].named_buffers())
        for name, b in module.named_buffers():
            _close(own[name], b, f"member {i}, {name}")
    _padding_is_zero(array)


@rows
def test_split_form_gives_the_same_gradients(row: AcrossRow, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    whole, split = hfta.fuse(modules, seeds), hfta.fuse(modules, seeds)
    whole.backward(loss_of, x, y)
    ((split(x) - y) ** 2).flatten(1).mean(1).sum().backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), split.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None and b.grad is not None:
            _close(a.grad, b.grad, name)
    _padding_is_zero(split)


@pytest.mark.each("row", every=2, begin=1)
@rows
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_twenty_steps(row: AcrossRow, optimizer: str, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    settings = {
        "AdamW": {"lr": 3e-3, "weight_decay": 0.1},
        "SGD": {"lr": 3e-3, "momentum": 0.9, "weight_decay": 0.01},
    }[optimizer]
    array = hfta.fuse(modules, seeds)
    own = getattr(hfta.optim, optimizer)(array, **settings)
    losses = []
    for _ in range(20):
        own.zero_grad()
        losses.append(array.backward(loss_of, x, y))
        own.step()
    for i, module in enumerate(modules):
        other = getattr(torch.optim, optimizer)(module.parameters(), **settings)
        alone = train_alone(module, seeds[i], 20, x, y, other)
        assert [v[i].item() for v in losses] == pytest.approx(alone, abs=1e-9)
        back = dict(array[i].named_parameters())
        for name, p in module.named_parameters():
            if not any(part in name for part in row.noise):
                torch.testing.assert_close(back[name], p, atol=1e-9, rtol=1e-9)
    _padding_is_zero(array)


@pytest.mark.long
@rows
def test_evaluation_without_gradients(row: AcrossRow, device: torch.device) -> None:
    modules, seeds, x, _ = _setup(row, device)
    array = hfta.fuse(modules, seeds).eval()
    with torch.no_grad():
        out = array(x)
        for i, module in enumerate(modules):
            _close(out[i], module.eval()(x), f"member {i}")


@rows
def test_member_comes_back_as_it_went_in(row: AcrossRow, device: torch.device) -> None:
    modules, seeds, x, _ = _setup(row, device)
    array = hfta.fuse(modules, seeds)
    for i, (module, knobs) in enumerate(zip(modules, row.knobs, strict=True)):
        back = array[i]
        assert type(back) is type(module)
        assert list(back.state_dict()) == list(module.state_dict())
        for key, value in module.state_dict().items():
            assert torch.equal(back.state_dict()[key], value)
        fresh = row.build(**knobs).to(device, torch.float64)
        fresh.load_state_dict(back.state_dict())
        array.load_member(i, fresh.state_dict())
        assert torch.equal(fresh.eval()(x), module.eval()(x))
        module.train()
    array.eval()
    assert not any(m.training for m in array[0].modules())


@rows
def test_order_of_members_does_not_matter(row: AcrossRow, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    turned = list(range(len(modules)))[::-1]
    straight = hfta.fuse(modules, seeds)
    other = hfta.fuse([modules[i] for i in turned], [seeds[i] for i in turned])
    _close(straight.backward(loss_of, x, y)[turned], other.backward(loss_of, x, y), "losses")


@rows
def test_selected_and_joined(row: AcrossRow, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    array = hfta.fuse(modules, seeds)
    part, rest = array.select([1]), array.select([i for i in range(len(modules)) if i != 1])
    _padding_is_zero(part)
    both = hfta.join(part, rest)
    order = [1, *(i for i in range(len(modules)) if i != 1)]
    _close(both.backward(loss_of, x, y), array.backward(loss_of, x, y)[order], "losses")
    twin = copy.deepcopy(array)
    _close(twin.backward(loss_of, x, y), array.backward(loss_of, x, y), "losses")


@pytest.mark.each("row", every=2)
@rows
@pytest.mark.parametrize("block", ["all", 2])
def test_a_lost_member_harms_no_other(row: AcrossRow, block: Any, device: torch.device) -> None:
    modules, seeds, x, y = _setup(row, device)
    poisoned = copy.deepcopy(modules)
    with torch.no_grad():
        next(poisoned[1].parameters()).fill_(float("nan"))

    def trained(members: list[nn.Module]) -> FusedArray:
        array = hfta.fuse(members, seeds)
        array.block_size = len(members) if block == "all" else block
        train_array(array, hfta.optim.AdamW(array, lr=1e-2), x, y, 3)
        return array

    good, bad = trained(modules), trained(poisoned)
    _padding_is_zero(good)
    for i in range(len(modules)):
        if i != 1:
            for (name, p), (_, q) in zip(good[i].state_dict().items(), bad[i].state_dict().items(), strict=True):
                if device.type == "cuda":  # sums of atomic additions, in another order each time
                    _close(p, q, name)
                else:
                    assert torch.equal(p, q), name
    for name, own in bad.owned.items():
        value = dict(bad.named_parameters()).get(name)
        if value is not None:
            assert not value.detach()[~own].any(), name
