"""Adam and SGD as on a GPU: one pass, whatever the members' hyperparameters, by Triton or by torch's kernels.

The tests use CPU tensors; Triton interprets its kernels if it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.optim import one_pass
from hfta_nb.optim.one_pass import Chain, OnePass
from tests.contract import test_optim_edges as edges
from tests.contract import test_optim_padded as padded
from tests.contract import test_optim_surgery as surgery
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import CPU, Twins
from tests.contract.serial import make, plain
from tests.contract.test_optim_prepared import _Both, _Called

pytestmark = [
    pytest.mark.usefixtures("made_by"),
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),  # Triton's interpreter, of NaN
]

ROWS = [
    *(r for r in OPTIMIZERS if r.name in ("Adam", "AdamW") and isinstance(r.settings["lr"], list)),
    OptimizerRow("Adam", {"lr": 0.01, "betas": (0.5, 0.9), "maximize": True, "amsgrad": True}),
    OptimizerRow("SGD", {"lr": [0.1, 0.05, 0.02], "maximize": [False, True, False]}),
    OptimizerRow("SGD", {"lr": 0.1, "momentum": [0.0, 0.9, 0.5], "nesterov": [False, True, False],
                         "weight_decay": [0.0, 0.1, 0.01]}),
    OptimizerRow("SGD", {"lr": 0.05, "momentum": [0.9, 0.8, 0.0], "dampening": [0.0, 0.3, 0.5]}),
]  # fmt: skip
rows = pytest.mark.parametrize("row", ROWS, ids=str)


def _passes(optimizer: Any) -> list[OnePass]:
    return [s.fused for s in optimizer._segments if isinstance(s.fused, OnePass)]


@pytest.mark.pairs
@rows
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_twenty_steps_with_equal_gradients(row: OptimizerRow, dtype: torch.dtype, made_by: str) -> None:
    """Against torch's own: to 1e-12 in float64, to some last bits in float32."""
    twins = Twins(row, modules := make(plain, 3, dtype, CPU))
    array, optimizer = twins.array, twins.optimizer
    for step in range(20):
        for module, own in twins.all():
            for p, like in zip(module.parameters(), modules[0].parameters(), strict=True):
                wave = torch.arange(like.numel(), dtype=dtype).view_as(like)
                p.grad = torch.cos(wave + step).expand_as(p).clone()
            own.step()
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for i, module in enumerate(modules):
        for p, q in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p[i], q, atol=tolerance, rtol=tolerance)
    passes = _passes(optimizer)
    assert passes
    assert all(isinstance(p._step, Chain) == (made_by == "chain") for p in passes)


CONTRACT: list[Callable[[OptimizerRow], None]] = [
    edges.test_one_member,
    edges.test_poison_stays_in_its_member,
    edges.test_a_member_that_is_skipped_keeps_everything,
    edges.test_gradients_that_come_and_go,
    padded.test_members_of_three_shapes,
    surgery.test_copied_in_place,
    surgery.test_begun_anew,
]


@pytest.mark.parametrize("row", [ROWS[1], ROWS[-1]], ids=str)
@pytest.mark.parametrize("contract", CONTRACT, ids=lambda f: f.__name__)
def test_the_contract_of_optimizers(contract: Callable[[OptimizerRow], None], row: OptimizerRow) -> None:
    contract(row)


@pytest.mark.parametrize("eps", [None, 0.0])
def test_nothing_stays_nothing(eps: float | None) -> None:
    edges.test_nothing_stays_nothing(OptimizerRow("Adam", {"lr": [0.1, 0.01, 1e-3]}), eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("row", [ROWS[0], ROWS[-2]], ids=str)
def test_half_precision(row: OptimizerRow, dtype: torch.dtype) -> None:
    edges.test_half_precision(row, dtype)


def test_members_are_marked_without_reading_back() -> None:
    """Neither marks nor changed learning rates make the host wait, or another pass."""
    both = _Both("Adam", {})
    both.settle()
    passes = _passes(both.optimizer)
    for skip in (None, torch.tensor([False, True, False])):
        both.gradients()
        for own in (both.optimizer, *both.alone):
            own.param_groups[0]["lr"] = [0.5, 0.3, 0.1] if own is both.optimizer else 0.1
        with _Called() as called:
            both.optimizer.step(skip=() if skip is None else skip)
        assert not called.names & {"aten::_local_scalar_dense", "aten::nonzero"}
    assert _passes(both.optimizer) == passes != []


def test_lists_of_members_to_leave_out_keep_the_pass() -> None:
    both = _Both("AdamW", {"amsgrad": True})
    both.settle()
    passes = _passes(both.optimizer)
    before = [p.detach()[1].clone() for p in both.array.parameters()]
    both.gradients()
    both.optimizer.step(skip=[1])
    assert all(torch.equal(p[1], old) for p, old in zip(both.array.parameters(), before, strict=True))
    assert _passes(both.optimizer) == passes != []
    assert [int(both.optimizer.state_of(i)["state"][0]["step"]) for i in range(3)] == [4, 3, 4]


class _Kernels:
    """What Triton's module offers, with a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def bind(self, kernel: str, p: Tensor, g: Tensor, *more: Any) -> Callable[[Tensor], None]:
        if self.fault == "no compiler":
            raise RuntimeError("no compiler\nat all")
        return lambda skip: p.sub_(g)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("wrong", r"gives other numbers \(the parameter of member 0, off by .*\)"), ("no compiler", "no compiler")],
)
def test_kernels_that_fail_or_give_other_numbers_are_not_used(
    fault: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hfta_nb.optim.triton_kernels", _Kernels(fault))
    monkeypatch.setattr(hfta.optim, "triton_kernels", _Kernels(fault), raising=False)
    both = _Both("Adam", {})
    with pytest.warns(UserWarning, match=rf"kernel of Adam .*{words}\. Steps are made"):
        both.settle()
    both.equal()
    assert all(isinstance(p._step, Chain) for p in _passes(both.optimizer))
    _Both("Adam", {}).settle()  # told once


def test_optimizers_on_a_cpu_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert {"cuda"} == one_pass.DEVICES
    optimizer = hfta.optim.Adam(hfta.fuse([nn.Linear(2, 1) for _ in range(3)]))
    assert not one_pass.covers(next(iter(optimizer.array.parameters())))
