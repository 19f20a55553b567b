"""The gradient scaler equals torch's on each member alone, overflows included."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_serial import CPU, setup, through_file
from tests.contract.serial import largest, make, plain

SETTINGS = {
    "init_scale": [1024.0, 8.0, 3.0],
    "growth_factor": [2.0, 4.0, 1.5],
    "backoff_factor": [0.5, 0.25, 0.1],
    "growth_interval": [2, 3, 4],
}
BAD = {1: {3}, 2: {1, 2}, 5: {0}, 6: {4, 5, 9}}  # step: places of bad gradients; the member is place % 3


def _bad(step: int, member: int) -> bool:
    return any(place % 3 == member for place in BAD.get(step, ()))


def _poison(parameter: torch.Tensor, step: int) -> None:
    parameter.view(-1)[step % 3] = math.inf if step % 2 else math.nan


def _train(array, optimizer, scaler, x, y, steps) -> None:
    for step in steps:
        optimizer.zero_grad()
        array.backward(nn.functional.mse_loss, x, y, scale=scaler.scales)
        for i in range(len(array)):
            if _bad(step, i):
                _poison(array.get_parameter("0.weight").grad[i], step)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("name", ["SGD", "Adam", "Muon"])
def test_twenty_steps(name: str, device: torch.device) -> None:
    modules, x, y = setup(device)
    array = hfta.fuse(modules)

    def pick(module):
        return (
            [p for n, p in module.named_parameters() if n.endswith("weight")] if name == "Muon" else module.parameters()
        )

    optimizer = getattr(hfta.optim, name)(pick(array), lr=[0.1, 0.01, 0.05])
    scaler = hfta.optim.GradScaler(array, **SETTINGS)
    alone = []
    for i, module in enumerate(modules):
        own = getattr(torch.optim, name)(pick(module), lr=[0.1, 0.01, 0.05][i])
        alone.append((own, torch.amp.GradScaler(device.type, **{k: v[i] for k, v in SETTINGS.items()})))
    for step in range(20):
        _train(array, optimizer, scaler, x, y, [step])
        for i, (module, (own, theirs)) in enumerate(zip(modules, alone, strict=True)):
            own.zero_grad()
            theirs.scale(nn.functional.mse_loss(module(x), y)).backward()
            if _bad(step, i):
                _poison(module[0].weight.grad, step)
            theirs.step(own)
            theirs.update()
        assert scaler.get_scale() == [theirs.get_scale() for _, theirs in alone]
    if name != "Muon":
        assert largest(array, modules) <= 1e-10
    assert scaler.state_dict()["growth_tracker"] == [t.state_dict()["_growth_tracker"] for _, t in alone]


def test_neighbours_of_an_overflow_keep_every_bit() -> None:
    """As a run without any overflow; the member that overflows keeps values, state and step count."""
    runs = []
    for bad in (False, True):
        modules, x, y = setup()
        array = hfta.fuse(modules)
        optimizer = hfta.optim.Adam(array, lr=0.01)
        scaler = hfta.optim.GradScaler(array, init_scale=1024.0)
        for step in range(6):
            optimizer.zero_grad()
            array.backward(nn.functional.mse_loss, x, y, scale=scaler.scales)
            before = [p.detach()[1].clone() for p in array.parameters()], optimizer.state_dict()["state"]
            if bad and step == 3:
                array.get_parameter("2.bias").grad[1, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
            if bad and step == 3:
                assert all(torch.equal(p, q[1]) for p, q in zip(before[0], array.parameters(), strict=True))
                for name, entry in optimizer.state_dict()["state"].items():
                    assert entry["steps"] == [4, 3, 4]
                    for key, t in entry["tensors"].items():
                        assert torch.equal(t[1], before[1][name]["tensors"][key][1])
        runs.append([p.detach().clone() for p in array.parameters()])
    for p, q in zip(*runs, strict=True):
        assert torch.equal(p[[0, 2]], q[[0, 2]])
    assert scaler.get_scale() == [1024.0, 512.0, 1024.0]


def test_scaled_losses_as_in_torch() -> None:
    """`scale(losses)` in the split form, then clipping between `unscale_` and `step`."""
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(array, lr=0.1)
    scaler = hfta.optim.GradScaler(array, **SETTINGS)
    losses = ((array(x) - y) ** 2).mean((1, 2))
    scaled = scaler.scale([losses])[0]
    scaled.sum().backward()
    scaler.unscale_(optimizer)
    norms = hfta.optim.clip_grad_norm_(array, 0.1)
    scaler.step(optimizer)
    scaler.update()
    for i, module in enumerate(modules):
        own = torch.optim.SGD(module.parameters(), lr=0.1)
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        torch.testing.assert_close(scaled[i], loss * SETTINGS["init_scale"][i], atol=1e-10, rtol=0)
        # A scale of 3 is undone by float32's third, in torch too.
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        torch.testing.assert_close(norms[i], norm, atol=1e-6, rtol=0)
        own.step()
    assert largest(array, modules) <= 1e-6


def test_half_precision_gains_from_a_scale() -> None:
    """Gradients that vanish in float16 survive, per member: the weights stay in float32."""
    weights = make(lambda: nn.Linear(1, 1, bias=False), 2, torch.float32, CPU)
    array = hfta.fuse(weights)
    optimizer = hfta.optim.SGD(array, lr=1e6)
    scaler = hfta.optim.GradScaler(array, init_scale=[1.0, 65536.0])

    class Half(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g.half().float()

    x = torch.ones(1, 1)
    before = array.weight.detach().clone()
    array.backward(lambda out, y: (Half.apply(out) * 1e-9).sum(), x, None, scale=scaler.scales)
    scaler.step(optimizer)
    scaler.update()
    moved = (array.weight.detach() - before).flatten()
    assert moved[0] == 0
    assert moved[1] == pytest.approx(-1e-3, rel=1e-2)


def test_some_members_without_scaler() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(array, lr=0.1)
    scaler = hfta.optim.GradScaler(array, init_scale=4.0, growth_interval=1, enabled=[True, False, True])
    array.backward(nn.functional.mse_loss, x, y, scale=scaler.scales)
    for p in array.parameters():
        p.grad[0] = math.inf
        p.grad[1] = math.nan
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == [2.0, 1.0, 8.0]
    assert scaler.is_enabled() == [True, False, True]
    assert not array.get_parameter("0.weight")[1].isfinite().any()
    assert array.get_parameter("0.weight")[0].isfinite().all()
    off = hfta.optim.GradScaler(array, enabled=False)
    off.step(optimizer)
    off.update()
    assert off.get_scale() == [1.0] * 3


def test_state_goes_out_and_in() -> None:
    modules, x, y = setup()

    def fresh(settings):
        array = hfta.fuse(modules)
        return array, hfta.optim.Adam(array, lr=0.01), hfta.optim.GradScaler(array, **settings)

    through, half, rest = fresh(SETTINGS), fresh(SETTINGS), fresh({})
    _train(*through, x, y, range(12))
    _train(*half, x, y, range(5))
    for old, new in zip(half, rest, strict=True):
        new.load_state_dict(through_file(old.state_dict()))
    _train(*rest, x, y, range(5, 12))
    assert rest[2].get_scale() == through[2].get_scale()
    for p, q in zip(through[0].parameters(), rest[0].parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(OptimError, match="not the state of a GradScaler"):
        rest[2].load_state_dict({"scale": [1.0]})


def test_surgery() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer, scaler = hfta.optim.Adam(array, lr=0.01), hfta.optim.GradScaler(array, **SETTINGS)
    _train(array, optimizer, scaler, x, y, range(7))
    part = array.select([2, 0])
    few, fewer = optimizer.select([2, 0], part), scaler.select([2, 0], part)
    both = hfta.join(part, array.select([1]))
    joined = fewer.join(scaler.select([1], array.select([1])), both)
    scales = scaler.get_scale()
    assert joined.get_scale() == [scales[2], scales[0], scales[1]]
    _train(array, optimizer, scaler, x, y, range(20, 26))
    _train(part, few, fewer, x, y, range(20, 26))
    assert fewer.get_scale() == [scaler.get_scale()[i] for i in (2, 0)]
    for p, q in zip(array.parameters(), part.parameters(), strict=True):
        torch.testing.assert_close(p[[2, 0]], q, atol=1e-12, rtol=0)
    array.copy_member(0, 1)
    assert scaler.get_scale()[0] == scaler.get_scale()[1]
    assert scaler.state_dict()["growth_interval"] == [2, 2, 4]
    array.load_member(2, modules[2].state_dict())
    assert scaler.get_scale()[2] == 3.0


def test_what_is_not_accepted() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer, scaler = hfta.optim.Adam(array), hfta.optim.GradScaler(array)
    other = hfta.optim.Adam(hfta.fuse(modules))
    cases = [
        (lambda: hfta.optim.GradScaler(modules[0]), "not a FusedArray"),
        (lambda: hfta.optim.GradScaler(array, growth_factor=1.0), "growth_factor: out of bounds"),
        (lambda: hfta.optim.GradScaler(array, backoff_factor=[0.5, 1.0, 0.5]), "backoff_factor, member 1"),
        (lambda: hfta.optim.GradScaler(array, init_scale=[1.0]), "not one value per member"),
        (lambda: scaler.step(other), "not an optimizer of this scaler's array"),
        (lambda: scaler.step(optimizer, lambda: None), "closure"),
        (lambda: scaler.update(), "no step since the last"),
        (lambda: scaler.scale(torch.zeros(())), "not one loss per member"),
        (lambda: scaler.scale(1.0), "not a tensor"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()
    array.backward(nn.functional.mse_loss, x, y)
    scaler.unscale_(optimizer)
    with pytest.raises(OptimError, match="called twice"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(OptimError, match="called twice"):
        scaler.step(optimizer)
    scaler.update(new_scale=[1.0, 2.0, 3.0])
    assert scaler.get_scale() == [1.0, 2.0, 3.0]
    half = hfta.fuse(make(plain, 2, torch.float16, CPU))
    for p in half.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(OptimError, match="float16"):
        hfta.optim.GradScaler(half).step(hfta.optim.SGD(half))
