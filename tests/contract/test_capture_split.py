"""Replayed `array(x)` with a loss of the caller: equal to autograd's, however it is used."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.replay import (
    REPLAYED,
    TIGHT,
    compare,
    forget,
    loss_of_all,
    mlp,
    notes,
    one_step,
    pair,
    replayed,
    same,
    warm,
)
from tests.contract.serial import plain


def norm() -> nn.Module:
    """A layer whose kernel allocates the output, which its backward does not read."""
    return nn.BatchNorm1d(5)


def padded() -> nn.Module:
    """Ends with a kernel that allocates exactly what is returned."""
    return nn.Sequential(nn.Linear(5, 5), nn.ConstantPad1d(1, 0.5))


class Squared(nn.Module):
    """Returns a norm's output, which the backward of the other output reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = norm()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.norm(x)
        return out, out * out


@pytest.mark.parametrize("build", [mlp, norm, padded])
def test_outputs_and_gradients_are_the_caller_s(build: Any, x: Tensor, device: torch.device) -> None:
    array, other = pair(build, device)
    warm(array, other, x)
    first = one_step(array, x)
    kept, before = first.detach().clone(), x.clone()
    one_step(array, x + 1)
    assert torch.equal(first, kept)
    assert torch.equal(x, before)
    first.detach().add_(1)  # what was returned can be written to
    for shift in (0, 1):
        one_step(other, x + shift)
    one_step(array, x)
    one_step(other, x)
    same(array, other)


@pytest.mark.parametrize("build", [norm, Squared])
def test_outputs_may_be_written_to_before_the_backward(build: Any, x: Tensor, device: torch.device) -> None:
    array, other = pair(build, device)
    for _ in range(4):
        one_step(array, x)
        one_step(other, x)
    weights = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1)).to(device)
    for a in (array, other):
        forget(a)
        outputs = a(x) if build is Squared else (a(x),)
        loss = sum((out * weights).sum() for out in outputs)  # does not read the outputs in its backward
        for out in outputs if a is array else ():
            assert replayed(out)
            out.detach().zero_()
        loss.backward()
    same(array, other)


def test_adding_to_gradients(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    for i in range(3):
        one_step(array, x + i, keep=True)
        one_step(other, x + i, keep=True)
        same(array, other)
    for a in (array, other):
        for p in a.parameters():
            p.grad = torch.ones_like(p)  # not in the arena
        one_step(a, x, keep=True)
    same(array, other)


def test_steps_by_an_optimizer(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    optimizers = [hfta.optim.Adam(a, lr=[0.1, 0.01, 0.03]) for a in (array, other)]
    for _ in range(12):
        for a, optimizer in zip((array, other), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of_all(a(x)).backward()
            optimizer.step()
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-11, rtol=1e-11)
    assert notes(array) == REPLAYED


def test_two_forwards_before_a_backward(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    for a in (array, other):
        forget(a)
        one, two = a(x), a(x + 1)
        assert replayed(one) == (a is array)
        assert not replayed(two)
        (loss_of_all(one) + 2 * loss_of_all(two)).backward()
    same(array, other)
    for a in (array, other):
        one = a(x)
        two = a((x + 1)[:4])
        loss_of_all(two).backward()
        loss_of_all(one).backward()
    same(array, other)


@pytest.mark.parametrize("build", [plain, norm, padded])
def test_a_forward_whose_outputs_are_gone_is_not_waited_for(build: Any, x: Tensor, device: torch.device) -> None:
    array, other = pair(build, device)
    warm(array, other, x)
    for _ in range(3):
        out = array(x)
        assert replayed(out)
        watch = weakref.ref(out.grad_fn)
        del out
        gc.collect()
        assert watch() is None


def test_the_same_graph_twice(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    for a in (array, other):
        forget(a)
        loss = loss_of_all(a(x))
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    same(array, other)
    for a in (array, other):  # with another step in between
        out = a(x)
        loss_of_all(out).backward(retain_graph=True)
        one_step(a, x * 2, keep=True)
        (loss_of_all(out) * 3).backward()
    same(array, other)


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_gradients_of_gradients(x: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for _ in range(6):
        for a, leaf in zip((array, other), leaves, strict=True):
            forget(a)
            leaf.grad = None
            (slope,) = torch.autograd.grad(loss_of_all(a(leaf)), leaf, create_graph=True)
            slope.square().sum().backward()
        assert leaves[0].grad is not None
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, **TIGHT)
        same(array, other)


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_gradients_of_inputs(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    factor = torch.ones((), dtype=x.dtype, device=device, requires_grad=True)
    for step in range(6):
        grads = []
        for a in (array, other):
            forget(a)
            leaf, own = x.clone().requires_grad_(), torch.stack([x, x + 1, x + 2]).requires_grad_()
            factor.grad = None
            loss_of_all(a(leaf * factor * (step + 1))).backward()
            loss_of_all(a(hfta.per_member(own))).backward()
            grads.append((leaf.grad, own.grad, factor.grad))
        torch.testing.assert_close(grads[0], grads[1], **TIGHT)
        same(array, other)
    assert notes(array) == REPLAYED


def test_gradients_by_autograd_grad_are_the_caller_s(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    found = []
    for a in (array, other):
        forget(a)
        loss_of_all(a(x)).backward()
        one = torch.autograd.grad(loss_of_all(a(x)), list(a.parameters()))
        two = torch.autograd.grad(loss_of_all(a(x + 1)), list(a.parameters())[:2])
        found.append((one, two))
        loss_of_all(a(x)).backward(inputs=list(a.parameters())[2:])
    torch.testing.assert_close(found[0], found[1], **TIGHT)
    same(array, other)


@pytest.mark.long
def test_adding_to_gradients_in_the_arena_warns_of_nothing() -> None:
    code = (
        "import torch; from hfta_nb import fuse; a = fuse([torch.nn.Linear(2, 2) for _ in range(3)]); "
        "x = torch.ones(4, 2); a.backward(lambda o, y: o.sum(), x); a(x).sum().backward()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class Two(nn.Module):
    """Gives two outputs, each from a layer of its own, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.body(x).tanh()
        left = self.left(hidden)
        return {"left": left, "right": self.right(hidden), "mask": left > 0, "count": 2}


def test_some_outputs_only(x: Tensor, device: torch.device) -> None:
    array, other = pair(Two, device)
    for used in (["left"], ["left", "right"], ["right"], ["left"], ["right"]):
        for _ in range(5):
            told = []
            for a in (array, other):
                forget(a)
                out = a(x)
                assert out["count"] == 2
                assert not out["mask"].requires_grad
                loss_of_all([out[k] for k in used]).backward()
                told.append(out)
            torch.testing.assert_close(told[0], told[1], **TIGHT)
            same(array, other)


def test_hooks_on_parameters(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    seen: list[list[Any]] = [[], []]
    for a, log in zip((array, other), seen, strict=True):
        p = a.get_parameter("0.weight")
        p.register_hook(lambda g, log=log: log.append(g.clone()) or g * 2)
        a.get_parameter("4.weight").register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad.clone()))
    for step in range(5):
        compare(array, other, x + step, times=1)
    assert len(seen[0]) == 10
    torch.testing.assert_close(sorted(seen[0], key=len), sorted(seen[1], key=len))


def test_hooks_when_gradients_are_there(x: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    warm(array, other, x)
    kept: list[list[Tensor]] = [[], []]
    for a, log in zip((array, other), kept, strict=True):
        a.get_parameter("2.weight").register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad))
        for _ in range(3):
            one_step(a, x)
    torch.testing.assert_close(kept[0], kept[1], **TIGHT)
    assert notes(array) == REPLAYED


def test_a_penalty_on_the_parameters_beside(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    for _ in range(6):
        for a in (array, other):
            forget(a)
            (loss_of_all(a(x)) + sum(p.square().sum() for p in a.parameters())).backward()
        same(array, other)
    assert notes(array) == REPLAYED
