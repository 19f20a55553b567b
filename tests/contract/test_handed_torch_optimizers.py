"""Optimizers and clipping of torch and others on an array's parameters: as alone, or an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, OptimError
from tests.contract.handed_optimizers import (
    Branching,
    Lamb,
    Langevin,
    Lion,
    MuonAndAdam,
    NoDecayOnVectors,
    Prodigal,
    Sam,
    X,
    Y,
    assert_member,
    fused,
    train,
)


def parameters(module: Any) -> list[nn.Parameter]:
    return list(module.parameters())


def step(array: Any, optimizer: Any) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, X, Y).sum()

    closure()
    optimizer.step(*([closure] if isinstance(optimizer, Sam | torch.optim.LBFGS) else []))


@pytest.mark.filterwarnings("ignore:torch.optim.* takes all members for one model")
@pytest.mark.parametrize(
    "make",
    [
        lambda a: Lion(a.parameters(), lr=0.01, weight_decay=0.1),
        lambda a: Lion([{"params": parameters(a)[:2], "lr": 0.0}, {"params": parameters(a)[2:]}]),
        lambda a: torch.optim.Adam(a.parameters(), amsgrad=True),
        lambda a: torch.optim.Rprop(parameters(a)),
        lambda a: torch.optim.Adagrad(parameters(a), foreach=True),
    ],
    ids=["Lion", "groups", "Adam", "Rprop", "Adagrad"],
)
def test_an_elementwise_optimizer_trains_members_as_alone(make: Any) -> None:
    array = fused()
    modules = list(array)
    optimizer = make(array)
    state, grads = torch.get_rng_state(), [p.detach().clone() for p in array.parameters()]
    for p, g in zip(array.parameters(), grads, strict=True):
        p.grad = g
    optimizer.step()
    assert torch.equal(state, torch.get_rng_state())
    for i, module in enumerate(modules):
        for p, g in zip(module.parameters(), grads, strict=True):
            p.grad = g[i]
        make(module).step()
        assert_member(array, i, module)


@pytest.mark.filterwarnings("ignore:torch.optim.* takes all members for one model")
@pytest.mark.parametrize(
    "make",
    [
        lambda a: Lamb(a.parameters()),
        lambda a: Lamb(parameters(a)),
        lambda a: Sam(a.parameters(), lr=0.1),
        lambda a: Langevin([p for p in a.parameters() if p.requires_grad], lr=0.1),
        lambda a: NoDecayOnVectors(a.parameters()),
        lambda a: Prodigal(a.parameters()),
        lambda a: Prodigal(a.parameters(), d0=10.0),  # small gradients don't change what it begins with
        lambda a: MuonAndAdam([{"params": parameters(a), "use_muon": True}]),
        lambda a: torch.optim.Adafactor(parameters(a)),
        lambda a: torch.optim.LBFGS(parameters(a)),
    ],
    ids=["Lamb", "list", "Sam", "Langevin", "axes", "sums", "late sums", "Muon", "Adafactor", "LBFGS"],
)
def test_another_optimizer_is_refused_before_it_has_trained(make: Any) -> None:
    array = fused()
    before = [p.detach().clone() for p in array.parameters()]
    optimizer = make(array)
    name = type(optimizer).__name__
    cure = (
        rf"optim.{name}\(array" if hasattr(hfta.optim, name) else rf"use hfta_nb.optim.ByMember\({name}, array, ...\)"
    )
    for _ in range(2):
        with pytest.raises(OptimError, match=f"takes all members for one model.*{cure}"):
            step(array, optimizer)
    assert all(torch.equal(p, q) for p, q in zip(array.parameters(), before, strict=True))
    if not name.startswith(("Ada", "LBFGS", "Muon", "Sam", "Langevin")):
        train(array, hfta.optim.ByMember(type(optimizer), array), steps=1)  # as it says


def test_an_optimizer_that_does_not_take_an_array_says_what_does() -> None:
    with pytest.raises(OptimError, match=r"Lamb: takes no array.*use hfta_nb.optim.ByMember\(Lamb, array, ...\)"):
        Lamb(fused())


@pytest.mark.filterwarnings("ignore:.*(fallback|one by one|member by member)")
def test_a_gradient_that_a_member_does_not_have_is_not_zero() -> None:
    modules = [Branching().double() for _ in range(3)]
    for i, module in enumerate(modules):
        nn.init.constant_(module.first.weight, -0.5 if i % 2 else 0.5)
    array = hfta.fuse(modules)
    optimizer = Lion(array.parameters(), weight_decay=0.1)
    array.backward(nn.functional.mse_loss, X, Y)
    with pytest.raises(
        OptimError, match=r"Lion, second.weight: takes the gradient that members \[1\] do not have for zero"
    ):
        optimizer.step()


@pytest.mark.parametrize(
    "clip",
    [
        lambda array: nn.utils.clip_grad_norm_(array.parameters(), 1.0),
        lambda array: nn.utils.clip_grad_norm_(parameters(array), 1.0),
        lambda array: nn.utils.clip_grad_norm_([p for n, p in array.named_parameters() if "weight" in n], 1.0),
        lambda array: nn.utils.clip_grads_with_norm_(parameters(array), 1.0, torch.tensor(2.0)),
    ],
    ids=["parameters", "list", "named", "with norm"],
)
def test_clipping_by_torch_warns(clip: Any) -> None:
    array = fused()
    array.backward(nn.functional.mse_loss, X, Y)
    with pytest.warns(ArrayWarning, match=r"hfta_nb.optim.clip_grad_norm_\(array, max_norm\)") as told:
        clip(array)
    assert [one.filename for one in told] == [__file__]
    nn.utils.clip_grad_norm_(array[0].parameters(), 1.0)


def test_a_norm_by_torch_warns() -> None:
    array = fused()
    array.backward(nn.functional.mse_loss, X, Y)
    grads = [p.grad for p in parameters(array)]
    for given in (grads, [g.detach() for g in grads], grads[0], array.parameters()):
        with pytest.warns(
            ArrayWarning, match=r"hfta_nb.optim.get_total_norm\(array\) gives each member its own"
        ) as told:
            nn.utils.get_total_norm(given)
        assert [one.filename for one in told] == [__file__]
    nn.utils.get_total_norm([g[0] for g in grads])
