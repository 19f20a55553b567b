"""Inputs that members share and that require a gradient, in loops that differentiate outside of the array."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning
from tests.contract.handed_over import SEEDS, STEPS, Regressor, numbers

MEMBERS = len(SEEDS)
WARNING = r"requires a gradient goes to all 3 members.*sum of the members' gradients.*hfta_nb\.per_member"

pytestmark = pytest.mark.usefixtures("verified")


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Regressor().double()


def fused() -> hfta.FusedArray:
    return hfta.fuse([build(seed) for seed in SEEDS])


def leaf() -> Tensor:
    return numbers(12, 4).requires_grad_()


def slope(u: Tensor, t: Tensor) -> Tensor:
    return torch.autograd.grad(u.sum(), t, create_graph=True)[0]


def saliency(array: Any) -> None:
    x = leaf()
    array(x).sum().backward()


def adversarial(array: Any) -> None:
    x = leaf()
    array.losses(nn.functional.mse_loss, array(x), numbers(12, 1)).sum().backward()


def physics(array: Any) -> None:
    t = leaf()
    slope(array(t), t)


def physics_of_parts(array: Any) -> None:
    t = numbers(12, 1).requires_grad_()
    slope(array(torch.cat([t, numbers(12, 3)], 1)), t)


def penalty(array: Any) -> None:
    between = (0.3 * numbers(12, 4) + 0.7 * numbers(12, 4, seed=3)).requires_grad_()
    slope(array(between), between).norm().backward()


def learned_input(array: Any) -> None:
    array(nn.Parameter(numbers(12, 4))).sum().backward()


@pytest.mark.parametrize("use", [saliency, adversarial, physics, physics_of_parts, penalty, learned_input])
@pytest.mark.parametrize("after", [0, 5], ids=["first", "replayed"])
def test_the_sum_over_members_is_told_at_once(use: Callable[[Any], None], after: int) -> None:
    array = fused()
    for _ in range(after):
        array(numbers(12, 4)).sum().backward()
    with pytest.warns(ArrayWarning, match=WARNING) as told:
        use(array)
    assert len(told) == 1
    for again in (array, array.select([0, 1])):
        use(again)  # once per array


def test_a_row_per_member_is_that_of_the_member_alone() -> None:
    """A network trained by its derivative, as in physics; recorded and replayed."""
    array = fused()
    optimizer = hfta.optim.SGD(array, lr=0.05)
    t = leaf()
    for _ in range(STEPS):
        optimizer.zero_grad()
        own = t.expand(MEMBERS, *t.shape)
        u = array(hfta.per_member(own))
        derivative = slope(u, own)
        losses = (derivative.sum(-1, keepdim=True) + u).square().mean((1, 2))
        losses.sum().backward()
        optimizer.step()
    for i, seed in enumerate(SEEDS):
        module = build(seed)
        alone = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(STEPS):
            alone.zero_grad()
            u = module(t)
            theirs = slope(u, t)
            loss = (theirs.sum(-1, keepdim=True) + u).square().mean()
            loss.backward()
            alone.step()
        torch.testing.assert_close(losses[i], loss, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(derivative[i], theirs, rtol=1e-10, atol=1e-10)


def of_a_shared_trunk(array: Any) -> None:
    """Whose gradient is meant to be the sum."""
    trunk = nn.Linear(5, 4).double()
    array(trunk(numbers(12, 5))).sum().backward()


def of_no_gradient(array: Any) -> None:
    with torch.no_grad():
        array(leaf())


def in_backward(array: Any) -> None:
    """A loss that differentiates by its own input sees one member only."""
    t = leaf()
    array.backward(lambda u, t: slope(u, t).square().mean() + u.square().mean(), t, t)


def per_member(array: Any) -> None:
    own = leaf().expand(len(array), 12, 4)
    slope(array(hfta.per_member(own)), own)


@pytest.mark.parametrize("use", [of_a_shared_trunk, of_no_gradient, in_backward, per_member])
def test_there_are_no_false_alarms(use: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(fused())


def test_one_member_has_its_own_gradient() -> None:
    x = leaf()
    found = slope(hfta.fuse([build(0)])(x), x)
    torch.testing.assert_close(found, slope(build(0)(x), x))


@pytest.mark.parametrize("form", ["forward", "backward"])
@pytest.mark.parametrize("shared", [False, True], ids=["per member", "shared"])
@pytest.mark.filterwarnings("ignore:an input")
def test_a_hook_of_an_input_is_called_once_a_call(form: str, shared: bool) -> None:
    array, told = fused(), []
    for _ in range(STEPS):
        x = numbers(12, 4) if shared else numbers(12, 4).expand(MEMBERS, 12, 4).clone()
        x.requires_grad_().register_hook(lambda grad: told.append(1) or 2 * grad)
        given = x if shared else hfta.per_member(x)
        if form == "forward":
            array(given).square().mean((1, 2)).sum().backward()
        else:
            array.backward(lambda out, _: out.square().mean(), given, numbers(12, 1))
    assert len(told) == STEPS
    expected = []
    for seed in SEEDS:
        own = leaf()
        build(seed)(own).square().mean().backward()
        expected.append(2 * own.grad)
    wanted = sum(expected) if shared else torch.stack(expected)
    torch.testing.assert_close(x.grad, wanted, rtol=1e-10, atol=1e-10)
