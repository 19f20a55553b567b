"""`array.losses`: every member's loss of an existing output, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import ArrayWarning, FusionError, MemberError
from tests.contract.replay import (
    MEMBERS,
    REPLAYED,
    TIGHT,
    by_backward,
    by_losses,
    forget,
    mlp,
    notes,
    pair,
    same,
)
from tests.contract.serial import plain

CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def y(device: torch.device) -> Tensor:
    return CLASSES.to(device)


def _step(array: FusedArray, x: Tensor, y: Tensor) -> Tensor:
    return by_losses(array, F.cross_entropy, x, y)


def _whole(array: FusedArray, x: Tensor, y: Tensor) -> Tensor:
    return by_backward(array, F.cross_entropy, x, y)  # type: ignore[no-any-return]


def _warm(array: FusedArray, other: FusedArray, x: Tensor, y: Tensor) -> None:
    """Until all is replayed."""
    for _ in range(12):
        torch.testing.assert_close(_step(array, x, y), _whole(other, x, y), **TIGHT)
        same(array, other)
    assert notes(array) == notes(array, "losses") == REPLAYED


def _steep(output: Tensor, y: Tensor) -> Tensor:
    return (output.exp() * output).mean() + output[y[0]].sum()


def _mean(array: FusedArray, x: Tensor, y: Tensor) -> None:
    array.losses(F.cross_entropy, array(x), y).mean().backward()


def _weighted(array: FusedArray, x: Tensor, y: Tensor) -> None:
    losses = array.losses(F.cross_entropy, array(x), y)
    (losses * torch.tensor([1.0, 2.0, 0.5], dtype=losses.dtype, device=losses.device)).sum().backward()


def _beside(array: FusedArray, x: Tensor, y: Tensor) -> None:
    out = array(x)
    (array.losses(F.cross_entropy, out, y).sum() + out.square().mean()).backward()


def _another(array: FusedArray, x: Tensor, y: Tensor) -> None:
    out = array(x)
    (array.losses(F.cross_entropy, out, y).sum() + array.losses(_steep, out, y).sum()).backward()


def _not_differentiated(array: FusedArray, x: Tensor, y: Tensor) -> None:
    array.losses(F.cross_entropy, array(x), y)
    array.losses(F.cross_entropy, array(x), y).sum().backward()


def _twice(array: FusedArray, x: Tensor, y: Tensor) -> None:
    loss = array.losses(F.cross_entropy, array(x), y).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def _two_in_one(array: FusedArray, x: Tensor, y: Tensor) -> None:
    one = array.losses(F.cross_entropy, array(x), y)
    two = array.losses(F.cross_entropy, array(x + 1), y)
    (one.sum() + two.sum()).backward()


def _another_backward_between(array: FusedArray, x: Tensor, y: Tensor) -> None:
    loss = array.losses(F.cross_entropy, array(x), y).sum()
    array.backward(F.cross_entropy, x + 1, y)
    forget(array)
    loss.backward()


def _added(array: FusedArray, x: Tensor, y: Tensor) -> None:
    for shift in (0, 1):
        array.losses(F.cross_entropy, array(x + shift), y).sum().backward()


def _forgotten_late(array: FusedArray, x: Tensor, y: Tensor) -> None:
    array.losses(F.cross_entropy, array(x), y).sum().backward()
    loss = array.losses(F.cross_entropy, array(x + 1), y).sum()
    forget(array)
    loss.backward()


def _penalty(array: FusedArray, x: Tensor, y: Tensor) -> None:
    penalty = sum(p.square().sum() for p in array.parameters())
    (array.losses(F.cross_entropy, array(x), y).sum() + penalty).backward()


def _by_grad(array: FusedArray, x: Tensor, y: Tensor) -> None:
    parameters = list(array.parameters())
    grads = torch.autograd.grad(array.losses(F.cross_entropy, array(x), y).sum(), parameters)
    for p, g in zip(parameters, grads, strict=True):
        p.grad = g * 2


def _some(array: FusedArray, x: Tensor, y: Tensor) -> None:
    array.losses(F.cross_entropy, array(x), y).sum().backward(inputs=list(array.parameters())[1:3])


def _kept_gradient(array: FusedArray, x: Tensor, y: Tensor) -> None:
    out = array(x)
    losses = array.losses(F.cross_entropy, out, y)
    out.retain_grad()
    losses.sum().backward()
    assert out.grad is not None
    next(array.parameters()).grad.add_(out.grad.sum())  # type: ignore[union-attr]


def _hook_that_writes(array: FusedArray, x: Tensor, y: Tensor) -> None:
    out = array(x)
    out.register_hook(lambda g: g.mul_(2))  # type: ignore[no-untyped-call]
    array.losses(F.cross_entropy, out, y).sum().backward()


def _other_mode(array: FusedArray, x: Tensor, y: Tensor) -> None:
    loss = array.losses(F.cross_entropy, array(x), y).sum()
    array.eval()
    loss.backward()
    array.train()


USES: dict[str, Callable[[FusedArray, Tensor, Tensor], None]] = {
    "their mean": _mean,
    "weights": _weighted,
    "the output beside": _beside,
    "another loss of it": _another,
    "not differentiated": _not_differentiated,
    "the same graph twice": _twice,
    "two in one loss": _two_in_one,
    "another backward between": _another_backward_between,
    "gradients that are there": _added,
    "forgotten after the losses": _forgotten_late,
    "a penalty": _penalty,
    "autograd.grad": _by_grad,
    "some parameters": _some,
    "the output's gradient": _kept_gradient,
    "a hook that writes": _hook_that_writes,
    "another mode in between": _other_mode,
}


@pytest.mark.filterwarnings("ignore:each of the 3 members' losses is divided by 3:hfta_nb.errors.ArrayWarning")
@pytest.mark.each("use")
@pytest.mark.parametrize("kind", [plain, mlp])
@pytest.mark.parametrize("use", USES)
def test_whatever_the_losses_are_used_for(
    use: str, kind: Callable[[], nn.Module], x: Tensor, y: Tensor, device: torch.device
) -> None:
    array, other = pair(kind, device)
    _warm(array, other, x, y)
    for step in range(7):
        for a in (array, other):
            forget(a)
            USES[use](a, x + step, y)
        same(array, other)
    for step in range(3):
        torch.testing.assert_close(_step(array, x + step, y), _whole(other, x + step, y), **TIGHT)
        same(array, other)


def test_a_change_before_the_backward_is_an_error(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    forget(array)
    loss = array.losses(F.cross_entropy, array(x), y).sum()
    with torch.no_grad():
        array.get_parameter("2.weight").add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_steps_by_an_optimizer(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    optimizers = [hfta.optim.Adam(a, lr=[0.1, 0.01, 0.03]) for a in (array, other)]
    for _ in range(20):
        for a, optimizer, step in zip((array, other), optimizers, (_step, _whole), strict=True):
            optimizer.zero_grad()
            step(a, x, y)
            optimizer.step()
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-11, rtol=1e-11)


def test_a_lost_member_harms_no_other(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    with torch.no_grad():
        array.get_parameter("0.weight")[1] = float("nan")
    losses = _step(array, x, y)
    wanted = _whole(other, x, y)
    assert losses[1].isnan()
    for i in (0, 2):
        assert torch.equal(losses[i], wanted[i])
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad[i], q.grad[i])  # type: ignore[index]


def test_a_loss_that_learns_itself(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, _ = pair(plain, device)
    factor = torch.ones((), dtype=x.dtype, device=device, requires_grad=True)
    with pytest.raises(FusionError, match=r"factor: .*belongs to no array.*hfta\.fuse"):
        array.losses(lambda output, y: F.cross_entropy(output * factor, y), array(x), y)


def test_mixed_precision(x: Tensor, y: Tensor) -> None:
    array, other = pair(plain, x.device, torch.float32)
    for _ in range(8):
        told = []
        for a in (array, other):
            forget(a)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                losses = a.losses(F.cross_entropy, a(x.float()), y)
            assert losses.dtype == torch.float32
            losses.sum().backward()
            told.append(losses.detach())
        torch.testing.assert_close(*told, atol=1e-2, rtol=1e-2)
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-2, rtol=1e-2)
    assert notes(array, "losses") == REPLAYED


def test_without_gradients_and_after_surgery(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    wanted = _whole(other, x, y)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(array.losses(F.cross_entropy, array(x), y), wanted, **TIGHT)
    part = array.select([2, 0])
    for _ in range(6):
        losses = _step(part, x, y)
    torch.testing.assert_close(losses, wanted[[2, 0]], **TIGHT)


def test_what_is_asked_wrongly_is_told(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, _ = pair(plain, device)
    out = array(x)
    with pytest.raises(FusionError, match="must be a scalar tensor"):
        array.losses(lambda output, y: output.mean(0), out, y)
    with pytest.raises(FusionError, match="another number of members"):
        array.losses(F.cross_entropy, out[:2], y)
    with pytest.raises(MemberError, match=r"member 0, the loss or metric"):
        array.losses(F.cross_entropy, out, y[:2])
    assert _step(array, x, y).shape == (MEMBERS,)


@pytest.mark.usefixtures("verified")
def test_a_loss_that_is_rounding_alone_is_no_difference(device: torch.device) -> None:
    """The sum of normalised values is zero but for rounding, which depends on how they are stored."""
    torch.manual_seed(0)
    x = torch.randn(64, 16, 8, 8, device=device)
    array = hfta.fuse([nn.BatchNorm2d(16).to(device) for _ in range(4)])
    for _ in range(3):
        losses = array.losses(lambda out, _: out.sum(), array(x), x)
        losses.sum().backward()
        torch.testing.assert_close(losses.detach(), torch.zeros(4, device=device), atol=1e-2, rtol=0)


@pytest.mark.usefixtures("verified")
def test_a_loss_that_differs_under_vmap_is_found(device: torch.device) -> None:
    array = hfta.fuse([nn.Linear(5, 5).to(device) for _ in range(3)])

    def wrong(out: Tensor, _: Any) -> Tensor:
        return out.square().sum() + (torch._C._functorch.maybe_current_level() is not None)

    out = array(torch.randn(6, 5, device=device))
    with pytest.warns(ArrayWarning, match="than alone"):
        losses = array.losses(wrong, out, torch.zeros(6, device=device))
    torch.testing.assert_close(losses, out.square().sum((1, 2)))
