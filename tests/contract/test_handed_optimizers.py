"""Optimizers of others, member by member, against the user's own loop."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.handed_optimizers import (
    LRS,
    SEEDS,
    Branching,
    Lamb,
    Langevin,
    Lion,
    MuonAndAdam,
    NoDecayOnVectors,
    Prodigal,
    Remembering,
    Sam,
    SteppingInHooks,
    X,
    Y,
    assert_member,
    build,
    fused,
    train,
    trained_alone,
)

CLASSES: list[Any] = [
    (Lion, "steps", {"weight_decay": 0.1}),
    (Lamb, "steps", {"clip": 0.2}),
    (Sam, "closure", {"rho": 0.1}),
    (Sam, "two steps", {"rho": 0.1, "momentum": 0.9}),
    (Langevin, "closure", {"momentum": 0.5}),
    (Prodigal, "steps", {}),
    (Remembering, "steps", {}),
    *(
        pytest.param(*row, marks=pytest.mark.long)
        for row in (
            (Lamb, "closure", {"betas": (0.8, 0.9)}),
            (Langevin, "steps", {}),
            (NoDecayOnVectors, "steps", {}),
            (torch.optim.Adafactor, "steps", {"weight_decay": 0.1}),
            (torch.optim.LBFGS, "closure", {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
            (torch.optim.NAdam, "steps", {"betas": (0.8, 0.9)}),
            (lambda params, lr: Sam(params, base=Lion, lr=lr), "two steps", {}),
        )
    ),
]


@pytest.mark.usefixtures("verified")
@pytest.mark.parametrize(("kind", "how", "settings"), CLASSES)
def test_any_optimizer_runs_as_in_a_loop_of_one_s_own(kind: Any, how: str, settings: dict[str, Any]) -> None:
    array = fused()
    optimizer = hfta.optim.ByMember(kind, array, lr=LRS, **settings)
    losses = train(array, optimizer, how, steps=3)
    # Saved and put into another one; members in another order; one of them begins in a third one.
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    order = [2, 0, 1]
    array = array.select(order)
    other = optimizer.select(order, array)
    again = hfta.optim.ByMember(kind, array, lr=[LRS[i] for i in order], **settings)
    again.load_state_dict(other.state_dict())
    losses = torch.cat([losses[order], train(array, again, how, steps=5)], 1)
    for place, i in enumerate(order):
        module, expected, alone = trained_alone(
            build, SEEDS[i], lambda m, i=i: kind(m.parameters(), lr=LRS[i], **settings), X, Y, how
        )
        assert_member(array, place, module)
        torch.testing.assert_close(losses[place], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)
        for key, value in alone.param_groups[0].items():
            if key != "params":
                assert again.rows(0, key)[place] == pytest.approx(value), key
    hfta.optim.ByMember(kind, fused(), lr=LRS, **settings).load_state_dict(torch.load(saved, weights_only=True))


def test_groups_of_two_kinds() -> None:
    def groups(module: Any, matrices: Any) -> list[dict[str, Any]]:
        named = dict(module.named_parameters())
        muon = [p for n, p in named.items() if n in matrices]
        return [{"params": muon, "use_muon": True, "momentum": 0.8},
                {"params": [p for n, p in named.items() if n not in matrices], "use_muon": False}]  # fmt: skip

    matrices = ["0.weight", "3.weight"]
    array = fused()
    given = groups(array, matrices)
    given[0]["lr"] = LRS
    optimizer = hfta.optim.ByMember(MuonAndAdam, given)
    train(array, optimizer)
    for i, seed in enumerate(SEEDS):

        def make(module: nn.Module, i: int = i) -> Any:
            own = groups(module, matrices)
            own[0]["lr"] = LRS[i]
            return MuonAndAdam(own)

        assert_member(array, i, trained_alone(build, seed, make, X, Y, "steps")[0])
    assert optimizer.param_groups[1]["lr"] == 0.02
    part = array.select([1])
    train(part, optimizer.select([1], part), steps=1)


def test_members_are_copied_replaced_and_joined() -> None:
    array = fused()
    optimizer = hfta.optim.ByMember(Lamb, array, lr=LRS, clip=[0.1, 0.2, 0.3])
    train(array, optimizer, steps=3)
    array.copy_member(0, 2)
    array.generators.keep(2, dict(array.generators.states[0]))
    other = fused([5])
    both = hfta.join(array, other)
    joined = optimizer.join(hfta.optim.ByMember(Lamb, other, lr=0.03, clip=0.4), both)
    train(both, joined, steps=3)
    expected = trained_alone(build, 0, lambda m: Lamb(m.parameters(), lr=LRS[0], clip=0.1), X, Y, "steps", 6)[0]
    assert_member(both, 0, expected)
    assert_member(both, 2, expected)
    expected = trained_alone(build, 5, lambda m: Lamb(m.parameters(), lr=0.03, clip=0.4), X, Y, "steps", 3)[0]
    assert_member(both, 3, expected)
    assert joined.param_groups[0]["step"] == [6, 6, 6, 3]
    torch.manual_seed(7)
    both.load_member(1, (fresh := build()).state_dict())
    assert joined.param_groups[0]["step"] == [6, 0, 6, 3] or joined.param_groups[0]["step"][1] == 6
    assert fresh is not None


def test_members_of_unlike_width() -> None:
    def narrow() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()

    modules = []
    for seed, make in enumerate((narrow, wide)):
        torch.manual_seed(seed)
        modules.append(make())
    array = hfta.fuse(modules, [0, 1])
    optimizer = hfta.optim.ByMember(Lamb, array, lr=LRS[:2])
    train(array, optimizer, steps=6)
    for seed, make in enumerate((narrow, wide)):
        expected, _, alone = trained_alone(
            make, seed, lambda m, s=seed: Lamb(m.parameters(), lr=LRS[s]), X, Y, "steps", 6
        )
        for p, q in zip(expected.parameters(), array[seed].parameters(), strict=True):
            torch.testing.assert_close(q, p, rtol=1e-10, atol=1e-10)
        for number, state in alone.state_dict()["state"].items():
            for key, value in state.items():
                torch.testing.assert_close(
                    optimizer.state_of(seed)["state"][number][key], value, rtol=1e-10, atol=1e-10
                )


def test_live_values_lr_schedulers_clipping_and_a_scaler() -> None:
    array = fused()
    optimizer = hfta.optim.ByMember(Lion, array, lr=LRS, betas=[(0.8, 0.9), (0.9, 0.95), (0.7, 0.9)])
    scheduler = hfta.optim.lr_scheduler.ExponentialLR(optimizer, gamma=[0.5, 0.6, 0.7])
    scaler = hfta.optim.GradScaler(array, init_scale=[2.0, 4.0, 8.0])
    for step in range(6):
        optimizer.zero_grad()
        array.backward(nn.functional.mse_loss, X, Y, scale=scaler.scales)
        scaler.unscale_(optimizer)
        hfta.optim.clip_grad_norm_(array, [0.1, 0.2, 0.3])
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step == 2:
            optimizer.param_groups[0]["weight_decay"] = [0.1, 0.2, 0.3]
    for i, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        module = build()
        torch.manual_seed(seed)
        alone = Lion(module.parameters(), lr=LRS[i], betas=[(0.8, 0.9), (0.9, 0.95), (0.7, 0.9)][i])
        schedule = torch.optim.lr_scheduler.ExponentialLR(alone, [0.5, 0.6, 0.7][i])
        for step in range(6):
            alone.zero_grad()
            nn.functional.mse_loss(module(X), Y).backward()
            nn.utils.clip_grad_norm_(module.parameters(), [0.1, 0.2, 0.3][i])
            alone.step()
            schedule.step()
            if step == 2:
                alone.param_groups[0]["weight_decay"] = [0.1, 0.2, 0.3][i]
        assert_member(array, i, module)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(
        [lr * g**6 for lr, g in zip(LRS, (0.5, 0.6, 0.7), strict=True)]
    )


@pytest.mark.filterwarnings("ignore")
def test_a_member_without_gradient_is_left_alone() -> None:
    modules = [Branching().double() for _ in range(4)]
    for i, module in enumerate(modules):
        nn.init.constant_(module.first.weight, -0.5 if i % 2 else 0.5)
    array = hfta.fuse(modules)
    optimizer = hfta.optim.ByMember(Lion, array, lr=0.01, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        array.backward(nn.functional.mse_loss, X, Y)
        optimizer.step()
    for i, module in enumerate(modules):
        alone = Lion(module.parameters(), lr=0.01, weight_decay=0.5)
        for _ in range(3):
            alone.zero_grad()
            nn.functional.mse_loss(module(X), Y).backward()
            alone.step()
        assert_member(array, i, module)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: hfta.optim.ByMember(Lion, a, lr=[0.1, 0.2]), "lr: not one value per member"),
        (lambda a: hfta.optim.ByMember(Lion, a, momentum=0.9), r"ByMember\(Lion\), member 0: .*momentum"),
        (lambda a: hfta.optim.ByMember(torch.optim.SGD, a, lr=[0.1, -1, 0.1]), "member 1: Invalid learning rate"),
        (lambda a: hfta.optim.ByMember(a, Lion), "ByMember: not a class"),
        (lambda a: hfta.optim.ByMember(Lion, a[0].parameters()), "ByMember: not a FusedArray"),
        (lambda a: hfta.optim.ByMember(SteppingInHooks, a), r"member 0, 0.weight: steps in hooks of its parameters"),
        (lambda a: hfta.optim.ByMember(lambda p: [p], a), "makes no torch.optim.Optimizer"),
    ],
    ids=["length", "unknown", "bounds", "order", "member", "hooks", "function"],
)
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(OptimError, match=message):
        call(fused())


class Failing(Lion):
    """Fails in its own code."""

    def step(self, closure: Any = None) -> None:
        raise IndexError(self.param_groups[0]["lr"])


def test_an_error_of_a_class_names_the_member() -> None:
    array = fused()
    with pytest.raises(OptimError, match=r"ByMember\(Failing\), member 0: its step fails: IndexError: 0.01"):
        train(array, hfta.optim.ByMember(Failing, array, lr=LRS))


def test_a_gradient_that_is_refused_has_changed_nothing() -> None:
    array = fused()
    every = list(array.parameters())
    optimizer = hfta.optim.SGD([{"params": every[:1]}, {"params": every[1:]}], lr=LRS)
    array.backward(nn.functional.mse_loss, X, Y)
    every[2].grad = every[2].grad.to_sparse()
    before = [p.detach().clone() for p in every]
    with pytest.raises(OptimError, match=r"SGD, 3.weight: a sparse gradient"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(every, before, strict=True))
