"""Modules and parameters that several members share when they are fused."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hfta_nb as hfta
from hfta_nb.engine.eager.unlearning import unlearned
from hfta_nb.errors import ArrayWarning, FusionError
from tests.contract.handed_over import STEPS, numbers

X, Y = numbers(12, 4), numbers(12, 1, seed=1)

pytestmark = pytest.mark.usefixtures("verified")


def trunk(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False) if norm else nn.Tanh()]
    return nn.Sequential(*layers).double()


def head(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1)).double()


def over(shared: nn.Module, widths: tuple[int, ...] = (5, 5, 5)) -> list[nn.Module]:
    return [nn.Sequential(shared, head(width)) for width in widths]


class Tied(nn.Module):
    """A parameter that members share without sharing a module."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 1).double(), scale

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x * self.scale)
        return found


class Coded(nn.Module):
    """A frozen codebook that follows in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(numbers(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        found = x - self.codes
        self.codes.data.lerp_(x.detach().mean(0), 0.1)
        return found


def nested() -> list[nn.Module]:
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    return [nn.Sequential(nn.Sequential(nn.Linear(4, 4).double(), shared), nn.Linear(4, 1).double()) for _ in range(3)]


TRAINED: dict[str, tuple[Callable[[], list[nn.Module]], str]] = {
    "trunk": (
        lambda: over(trunk()),
        "members 0, 1, 2 share `0`: each gets a copy.*deepcopy.*several heads.*requires_grad_",
    ),
    "trunk of unlike heads": (lambda: over(trunk(), (5, 7, 5)), "members 0, 1, 2 share `0`"),
    "some of the members": (lambda: [*over(trunk()), *over(trunk(), (5,))], "members 0, 1, 2 share `0`"),
    "inner module": (nested, r"share `0\.1`"),
    "parameter": (lambda: [Tied(p) for p in [nn.Parameter(numbers(4))] for _ in range(3)], "share `scale`"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_told_and_copied(name: str) -> None:
    build, message = TRAINED[name]
    modules = build()
    plain = copy.deepcopy(modules)
    plain = [copy.deepcopy(module) for module in plain]  # the copies that are told of
    with pytest.warns(ArrayWarning, match=message) as told:
        array = hfta.fuse(modules)
    assert len(told) == 1
    optimizer = hfta.optim.SGD(array, lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = array.backward(F.mse_loss, X, Y)
        optimizer.step()
    for i, module in enumerate(plain):
        own = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(STEPS):
            own.zero_grad()
            loss = F.mse_loss(module(X), Y)
            loss.backward()
            own.step()
        torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("widths", [(5, 5, 5), (5, 7, 5)], ids=["alike", "unlike"])
def test_a_frozen_trunk_needs_no_warning(widths: tuple[int, ...]) -> None:
    array = hfta.fuse(over(trunk(norm=True).eval().requires_grad_(False), widths))
    array.eval()
    array.backward(F.mse_loss, X, Y)
    hfta.fuse(over(nn.Tanh(), widths))  # nothing to share


@pytest.mark.parametrize("widths", [(5, 5, 5), (5, 7, 5)], ids=["alike", "unlike"])
def test_a_call_that_changes_shared_buffers_is_told(widths: tuple[int, ...]) -> None:
    array = hfta.fuse(over(trunk(norm=True).requires_grad_(False), widths))
    with pytest.warns(ArrayWarning, match=r"share `0\.1\.running_mean`, which the model changes.*eval\(\)"):
        array.backward(F.mse_loss, X, Y)
    array.backward(F.mse_loss, X[:6], Y[:6])  # once


def test_a_call_that_changes_a_shared_codebook_is_told() -> None:
    shared = Coded()
    array = hfta.fuse([nn.Sequential(shared, nn.Linear(4, 1).double()) for _ in range(3)])
    with pytest.warns(ArrayWarning, match=r"share `0\.codes`"):
        array(X)


def test_own_copies_need_no_warning() -> None:
    shared = trunk()
    array = hfta.fuse([nn.Sequential(copy.deepcopy(shared), head()) for _ in range(3)])
    array.backward(F.mse_loss, X, Y)
    hfta.fuse([*array])
    hfta.join(array, array)


def test_one_module_twice_is_refused() -> None:
    module = head()
    with pytest.raises(FusionError, match="the same module as member 0"):
        hfta.fuse([module, module])


@pytest.mark.parametrize("padding", ["auto", "never"])
def test_a_study_s_members_train_copies_too(padding: str, tmp_path: Path) -> None:
    shared = trunk()
    before = copy.deepcopy(shared.state_dict())

    def build(width: int = 5) -> nn.Module:
        return nn.Sequential(shared, head(width))

    data = (X, Y, X, Y)
    grid = {"seed": [0, 1], "width": [5, 7]}
    with pytest.warns(ArrayWarning, match="share `0`"):  # noqa: PT031
        study = hfta.Study(build, grid, data, epochs=2, loss=F.mse_loss, device="cpu", lr=0.1, dtype="float64",
                           batch_size=12, monitor="val_loss", directory=tmp_path, padding=padding)  # fmt: skip
        study.fit(progress=False)
    torch.testing.assert_close(dict(shared.state_dict()), dict(before), rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrayWarning)
        assert study.check(members=[0, 3])["equal"].all()
    torch.testing.assert_close(dict(shared.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("how", "grid"),
    [({"serial": True}, {"seed": [0, 1]}), ({"padding": "never"}, {"width": [5, 7]}), ({}, {"width": [5, 7]})],
    ids=["serial", "apart", "fused"],
)
@pytest.mark.parametrize("when", ["before", "when it is first asked for"])
def test_what_a_study_s_build_function_keeps_is_told(
    when: str, how: dict[str, Any], grid: dict[str, list[int]], tmp_path: Path
) -> None:
    """One member at a time is built for a serial study, and a plan builds all of them."""
    kept, again = functools.cache(trunk), functools.cache(lambda: trunk())
    if when == "before":
        kept()
        again()

    def build(width: int = 5) -> nn.Module:
        return nn.Sequential(kept(), head(width))

    def copied(width: int = 5) -> nn.Module:
        return nn.Sequential(copy.deepcopy(again()), head(width))

    known = {"epochs": 2, "loss": F.mse_loss, "device": "cpu", "lr": 0.1, "dtype": "float64", "batch_size": 12}
    known |= {"monitor": "val_loss", **how}
    data = (X, Y, X, Y)
    with pytest.warns(ArrayWarning, match="share `0`: each gets a copy of its own"):  # noqa: PT031
        study = hfta.Study(build, grid, data, directory=tmp_path / "a", **known)
        study.fit(progress=False)
    before = copy.deepcopy(dict(kept().state_dict()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* from one seed that begin with unlike values", ArrayWarning)  # the first
        same = hfta.Study(copied, grid, data, directory=tmp_path / "b", **known)
        same.fit(progress=False)
    torch.testing.assert_close(dict(kept().state_dict()), before, rtol=0, atol=0)
    for variant in (0, 1):
        mine, theirs = (s.member(variant).module().state_dict() for s in (study, same))
        torch.testing.assert_close(dict(mine), dict(theirs), rtol=1e-10, atol=1e-10)


def test_statistics_that_a_serial_study_s_members_share_are_told(tmp_path: Path) -> None:
    shared = trunk(norm=True).requires_grad_(False)

    def build(width: int = 5) -> nn.Module:
        return nn.Sequential(shared, head(width))

    with pytest.warns(ArrayWarning, match=r"share `0\.1\.running_mean`, which the model changes.*eval\(\)"):
        hfta.Study(build, {"seed": [0, 1]}, (X, Y, X, Y), epochs=1, loss=F.mse_loss, device="cpu", dtype="float64",
                   batch_size=12, monitor="val_loss", directory=tmp_path, serial=True).fit(progress=False)  # fmt: skip


def test_changes_are_told_after_a_trial() -> None:
    """What is tried before the first call, as with an optimizer, warns of nothing, and takes no warning away."""
    array = hfta.fuse(over(trunk(norm=True).requires_grad_(False)))
    with unlearned(array._state):
        array.backward(F.mse_loss, X, Y)
    with pytest.warns(ArrayWarning, match=r"share `0\.1\.running_mean`"):
        array.backward(F.mse_loss, X, Y)


class Listed(nn.Module):
    """Holds modules in a list of Python, or what it is given."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held, self.out = held, nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        held = self.held[0] if isinstance(self.held, list) else self.held
        found: Tensor = self.out(held(x) if isinstance(held, nn.Module) else x * held)
        return found


@pytest.mark.parametrize("made", [lambda: [nn.Linear(4, 4).double()], lambda: numbers(4).requires_grad_()])
def test_what_is_trained_and_no_parameter_is_told_with_what_to_do(made: Callable[[], object]) -> None:
    array = hfta.fuse([Listed(held) for held in [made()] for _ in range(3)])
    with pytest.raises(FusionError, match=r"held.*the model depends on a tensor .*make it a parameter.*ModuleList"):
        array.backward(F.mse_loss, X, Y)


class Logs(nn.Module):
    """Counts, and appends what it sees, in what it is given."""

    def __init__(self, log: list[float], reads_only: bool = False) -> None:
        super().__init__()
        self.out, self.log, self.reads_only = nn.Linear(4, 1).double(), log, reads_only

    def forward(self, x: Tensor) -> Tensor:
        if not self.reads_only:
            self.log.append(0.5)
        found: Tensor = self.out(x) * (1 + len(self.log))
        return found


def test_a_list_that_members_share_and_a_call_changes_is_told() -> None:
    log: list[float] = []
    array = hfta.fuse([Logs(log) for _ in range(3)])
    with pytest.warns(ArrayWarning, match=r"members share `log`, which the model changes"):
        array(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array(X)
        hfta.fuse([Logs(log, reads_only=True) for _ in range(3)])(X)
        hfta.fuse([Logs([]) for _ in range(3)])(X)
    assert log == []
