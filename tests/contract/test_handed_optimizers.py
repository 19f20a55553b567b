"""Optimizers of others, member by member, against the user's own loop."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, OptimError
from tests.contract.handed_optimizers import (
    Lamb,
    Langevin,
    Lion,
    MuonAndAdam,
    NoDecayOnVectors,
    Prodigal,
    Remembering,
    Sam,
    SteppingInHooks,
    TimmScheduler,
    stepped,
    trained_alone,
)
from tests.contract.handed_over import numbers

schedulers = hfta.optim.lr_scheduler
X, Y = numbers(12, 4), numbers(12, 2, seed=1)
LRS = [0.01, 0.02, 0.05]
SEEDS = [0, 1, 2]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 2)).double()


def fused(seeds: list[int] = SEEDS) -> Any:
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(build())
    return hfta.fuse(modules, seeds)


def train(array: Any, optimizer: Any, how: str = "steps", steps: int = 8) -> torch.Tensor:
    def closure() -> Any:
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, X, Y)

    return torch.stack([stepped(optimizer, closure, how) for _ in range(steps)], 1)


def assert_member(array: Any, index: int, module: nn.Module) -> None:
    for (name, p), q in zip(module.named_parameters(), array.parameters(), strict=True):
        torch.testing.assert_close(q[index], p, rtol=1e-10, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


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


def test_what_a_class_keeps_goes_with_its_member() -> None:
    """By `member_state`, as a study's checkpoints do it, and in `state_dict` where the class has a form of its own."""
    array = fused()
    optimizer = hfta.optim.ByMember(Remembering, array, lr=LRS)
    train(array, optimizer, steps=3)
    optimizer.state[next(array.parameters())]["noted"] = torch.zeros(3, 5, 4)  # what belongs to no parameter stays
    states = {i: optimizer.member_state(i) for i in range(3)}
    again = hfta.optim.ByMember(Remembering, array, lr=LRS)
    again.load_members(states)
    train(array, again, steps=5)
    for i, seed in enumerate(SEEDS):
        assert_member(
            array, i, trained_alone(build, seed, lambda m, i=i: Remembering(m.parameters(), LRS[i]), X, Y, "steps")[0]
        )


class Unsaved(Lion):
    """Keeps something in an array of NumPy's, which no state holds."""

    def step(self, closure: Any = None) -> None:
        self.seen = np.zeros(3)
        super().step(closure)


def test_a_state_that_lacks_something_says_so() -> None:
    array = fused()
    optimizer = hfta.optim.ByMember(Unsaved, array)
    train(array, optimizer, steps=1)
    with pytest.warns(ArrayWarning, match=r"ByMember\(Unsaved\): the state does not hold \['seen'\]"):
        optimizer.state_dict()


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


class Branching(nn.Module):
    """Uses its second layer if its first weight says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.first(x)
        return out + self.second(x) if float(self.first.weight[0, 0].detach()) > 0 else out


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


def test_the_state_of_another_class_is_refused() -> None:
    array = fused()
    saved = hfta.optim.ByMember(Lion, array).state_dict()
    with pytest.raises(OptimError, match=r"ByMember\(Lamb\): the state of another optimizer; got 'ByMember\(Lion\)'"):
        hfta.optim.ByMember(Lamb, array).load_state_dict(saved)


# On an array's parameters.


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


# Lr schedulers.


@pytest.mark.parametrize("by_update", [False, True], ids=["epochs", "updates"])
@pytest.mark.parametrize("one", [True, False], ids=["one function", "a list"])
def test_schedulers_like_timm_s(by_update: bool, one: bool) -> None:
    array = fused()
    optimizer = hfta.optim.SGD(array, lr=LRS)
    makers = [lambda o, w=w: TimmScheduler(o, w, by_update) for w in (3, 3 if one else 5, 3 if one else 7)]
    scheduler = hfta.optim.lr_scheduler.ByMember(optimizer, makers[0] if one else makers)
    modules = list(array)
    alone = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(modules, LRS, strict=True)]
    own = [make(o) for make, o in zip(makers, alone, strict=True)]
    metrics = [[3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [1.0, 1.5, 3.0]]
    for epoch in range(3):
        scheduler.step_update(num_updates=2 * epoch + 1)
        scheduler.step(epoch + 1, torch.tensor(metrics[epoch]))
        for i, each in enumerate(own):
            each.step_update(num_updates=2 * epoch + 1)
            each.step(epoch + 1, metrics[epoch][i])
        if epoch == 1:
            part = array.select([0, 1, 2])
            optimizer = optimizer.select([0, 1, 2], part)
            scheduler = scheduler.select([0, 1, 2], optimizer)
        assert scheduler.get_last_lr() == [[o.param_groups[0]["lr"] for o in alone]]
        assert optimizer.rows(0, "lr") == [o.param_groups[0]["lr"] for o in alone]
    with pytest.raises(OptimError, match="not one value per member"):
        scheduler.step(4, [0.1, 0.2])


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    "epoch", [(7, 8, 12), [7, 8, 12], torch.tensor([7, 8, 12]), 9], ids=["tuple", "list", "tensor", "one"]
)
@pytest.mark.parametrize(
    "make",
    [lambda o: torch.optim.lr_scheduler.StepLR(o, 4), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
     lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.9**e)],
    ids=["StepLR", "Cosine", "LambdaLR"],
)  # fmt: skip
def test_to_an_epoch_of_one_s_own(make: Any, epoch: Any) -> None:
    optimizer = hfta.optim.SGD(fused(), lr=LRS)
    scheduler = hfta.optim.lr_scheduler.ByMember(optimizer, make)
    with pytest.warns(UserWarning, match="epoch parameter in `scheduler.step") as told:
        scheduler.step(epoch=epoch)
    assert len(told) == 1
    scheduler.step()
    for i, lr in enumerate(LRS):
        alone = torch.optim.SGD([torch.zeros(1)], lr=lr)
        own = make(alone)
        alone.step()
        own.step(epoch=epoch if isinstance(epoch, int) else int(epoch[i]))
        own.step()
        assert optimizer.rows(0, "lr")[i] == pytest.approx(alone.param_groups[0]["lr"], abs=1e-15)


class Reading:
    """A scheduler that looks at what its optimizer trains, or has it step."""

    def __init__(self, optimizer: torch.optim.Optimizer, what: str) -> None:
        self.optimizer, self.what = optimizer, what

    def step(self) -> None:
        p = self.optimizer.param_groups[0]["params"][0]
        if self.what == "state":
            self.optimizer.state[p].get("momentum_buffer")
        elif self.what == "step":
            self.optimizer.step()
        else:
            self.optimizer.param_groups[0]["lr"] = float(p.norm() if self.what == "parameter" else p.grad.norm())


@pytest.mark.parametrize("what", ["state", "step", "parameter", "gradient"])
def test_a_scheduler_that_reads_more_than_values_is_refused(what: str) -> None:
    scheduler = hfta.optim.lr_scheduler.ByMember(hfta.optim.SGD(fused(), momentum=0.9), lambda o: Reading(o, what))
    with pytest.raises(OptimError, match=r"an lr scheduler that (reads|steps) the optimizer.*assign them"):
        scheduler.step()


@pytest.mark.parametrize("make", [lambda o: schedulers.MultiplicativeLR(o, lambda epoch: None),
                                  lambda o: schedulers.LambdaLR(o, lambda epoch: [1.0, 0.5][epoch]),
                                  lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=2),
                                  lambda o: torch.optim.lr_scheduler.SequentialLR(o, [schedulers.StepLR(o, 1)], [])],
                         ids=["None", "function", "ended", "torch's"])  # fmt: skip
def test_errors_of_schedulers_are_typed_and_change_no_value(make: Any) -> None:
    optimizer = hfta.optim.SGD(fused(), lr=LRS, momentum=0.9)
    before = dict(optimizer.param_groups[0])
    with pytest.raises(OptimError, match=r"(LR.step, member 0|SequentialLR): "):  # noqa: PT012
        scheduler = make(optimizer)
        for _ in range(3):
            before = dict(optimizer.param_groups[0])
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == before["lr"]


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Rprop", "Adafactor"])
def test_a_member_whose_schedule_overflows_diverges_alone(kind: str) -> None:
    array, gammas = fused(), [0.5, 1e308, 1.0]
    optimizer = getattr(hfta.optim, kind)(array, lr=LRS)
    scheduler = schedulers.StepLR(optimizer, 1, gamma=gammas)
    for _ in range(8):
        train(array, optimizer, steps=1)
        scheduler.step()
    assert optimizer.rows(0, "lr")[1] == float("inf")
    for i, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        module = build()
        torch.manual_seed(seed)
        alone = getattr(torch.optim, kind)(module.parameters(), lr=LRS[i])
        schedule = torch.optim.lr_scheduler.StepLR(alone, 1, gamma=gammas[i])
        for _ in range(8):
            alone.zero_grad()
            nn.functional.mse_loss(module(X), Y).backward()
            alone.step()
            schedule.step()
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=1e-10, atol=1e-10, equal_nan=True)


# Hooks of the optimizer.


@pytest.mark.parametrize("kind", ["SGD", "Adafactor", "ByMember"])
def test_hooks_around_steps_are_called_as_by_torch(kind: str) -> None:
    array, told = fused(), []
    optimizer: Any = hfta.optim.ByMember(Lion, array) if kind == "ByMember" else getattr(hfta.optim, kind)(array)

    def halve(_: Any, args: Any, kwargs: Any) -> None:
        for p in array.parameters():
            p.grad.mul_(0.5)

    handles = [optimizer.register_step_pre_hook(halve), optimizer.register_step_post_hook(lambda *a: told.append(a))]
    train(array, optimizer, steps=8)
    assert told == [(optimizer, (optimizer,), {})] * 8
    make = Lion if kind == "ByMember" else getattr(torch.optim, kind)
    for i, seed in enumerate(SEEDS):

        def hooked(module: nn.Module) -> Any:
            alone = make(module.parameters())
            alone.register_step_pre_hook(lambda *_: [p.grad.mul_(0.5) for p in module.parameters()] and None)
            return alone

        assert_member(array, i, trained_alone(build, seed, hooked, X, Y, "steps")[0])
    for handle in handles:
        handle.remove()
    train(array, optimizer, steps=1)
    assert len(told) == 8


def test_hooks_around_saving() -> None:
    optimizer, told = hfta.optim.SGD(fused()), list[str]()
    optimizer.register_state_dict_pre_hook(lambda o: told.append("saved"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: {k: v for k, v in state.items() if k != "more"})
    optimizer.register_load_state_dict_post_hook(lambda o: told.append("loaded"))
    saved = optimizer.state_dict()
    assert saved["more"] == 1
    optimizer.load_state_dict(saved)
    assert told == ["saved", "loaded"]
    with pytest.raises(OptimError, match="SGD, hook before step: not a function"):
        optimizer.register_step_pre_hook(3)


# State.


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (hfta.optim.Adam, torch.optim.Adam, {"amsgrad": True}),
        (hfta.optim.SGD, torch.optim.SGD, {"momentum": 0.9}),
        (hfta.optim.SGD, torch.optim.SGD, {}),
        (hfta.optim.ASGD, torch.optim.ASGD, {}),
        (hfta.optim.Rprop, torch.optim.Rprop, {}),
        (hfta.optim.Adafactor, torch.optim.Adafactor, {}),
        (lambda array, lr, **s: hfta.optim.ByMember(Lamb, array, lr=lr), Lamb, {}),
    ],
    ids=["Adam", "SGD", "plain SGD", "ASGD", "Rprop", "Adafactor", "ByMember"],
)
def test_the_state_reads_as_torch_s(ours: Any, theirs: Any, settings: dict[str, Any]) -> None:
    array = fused()
    optimizer = ours(array, lr=LRS, **settings)
    assert not optimizer.state
    train(array, optimizer, steps=3)
    for i, seed in enumerate(SEEDS):
        make = lambda m, i=i: theirs(m.parameters(), lr=LRS[i], **settings)  # noqa: E731
        module, _, alone = trained_alone(build, seed, make, X, Y, "steps", 3)
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            expected = {k: v for k, v in alone.state.get(p, {}).items() if v is not None}
            found = optimizer.state.get(q, {})
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(
                    found[key][i], torch.as_tensor(value), rtol=1e-7, atol=1e-10, check_dtype=False
                )
    if ours is hfta.optim.Adam:  # what is written there counts
        p = next(array.parameters())
        optimizer.state[p]["exp_avg"].zero_()
        assert not optimizer.state_of(0)["state"][0]["exp_avg"].any()
