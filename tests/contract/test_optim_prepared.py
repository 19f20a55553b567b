"""A prepared optimizer step notices all changes that affect it: values, gradients, members, the array's device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from tests.contract.serial import make

MEMBERS = 3
KINDS = [
    ("Adam", {}),
    ("Adam", {"fused": True}),
    ("AdamW", {"fused": True, "amsgrad": True}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {"fused": True}),
]


class _Both:
    """An array, and its members alone, that get the same gradients."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.modules = make(
            lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), MEMBERS, torch.float64, torch.device("cpu")
        )
        self.array = hfta.fuse(self.modules)
        self.lrs = [0.1, 0.02, 0.02]
        self.optimizer = getattr(hfta.optim, name)(self.array, lr=list(self.lrs), **settings)
        kind = getattr(torch.optim, name)
        self.alone = [kind(m.parameters(), lr=lr, **settings) for m, lr in zip(self.modules, self.lrs, strict=True)]

    def gradients(self, skipped: tuple[str, ...] = ()) -> None:
        self.optimizer.zero_grad()
        x, y = torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
        self.array.backward(nn.functional.mse_loss, x, y)
        for i, module in enumerate(self.modules):
            for name, p in module.named_parameters():
                p.grad = None if name in skipped else self.array.get_parameter(name).grad[i].clone()
        for name in skipped:
            self.array.get_parameter(name).grad = None

    def step(self, **how: Any) -> None:
        self.optimizer.step(**how)
        for own in self.alone:
            own.step()

    def settle(self) -> None:
        for _ in range(3):
            self.gradients()
            self.step()

    def equal(self) -> None:
        for i, module in enumerate(self.modules):
            for name, p in module.named_parameters():
                assert torch.allclose(self.array.get_parameter(name)[i], p, rtol=0, atol=1e-12), (name, i)


def _other_lr(both: _Both) -> None:
    both.optimizer.param_groups[0]["lr"] = 0.3
    for own in both.alone:
        own.param_groups[0]["lr"] = 0.3


def _lr_within_the_list(both: _Both) -> None:
    both.optimizer.param_groups[0]["lr"][1] = 0.3
    both.alone[1].param_groups[0]["lr"] = 0.3


def _tensor_for_lr(both: _Both) -> None:
    both.optimizer.param_groups[0]["lr"] = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    for own, lr in zip(both.alone, [0.5, 0.25, 0.125], strict=True):
        own.param_groups[0]["lr"] = lr


def _other_memory(both: _Both) -> None:
    both.array.double()


def _saved_and_loaded(both: _Both) -> None:
    both.optimizer.load_state_dict(both.optimizer.state_dict())


def _begins_anew(both: _Both) -> None:
    both.optimizer.reset_member(1)
    both.alone[1].state.clear()


def _copied(both: _Both) -> None:
    both.array.copy_member(0, 2)
    both.modules[2].load_state_dict(both.modules[0].state_dict())
    both.alone[2].load_state_dict(copy.deepcopy(both.alone[0].state_dict()))


CHANGES = [_other_lr, _lr_within_the_list, _tensor_for_lr, _other_memory, _saved_and_loaded, _begins_anew, _copied]


@pytest.mark.each("change")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_what_changes_between_two_steps(kind: tuple[str, dict], change: Callable[[_Both], None]) -> None:
    both = _Both(*kind)
    both.settle()
    change(both)
    both.settle()
    both.equal()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients_that_lie_elsewhere_or_lack(kind: tuple[str, dict]) -> None:
    both = _Both(*kind)
    both.settle()
    both.gradients()
    p = both.array.get_parameter("0.weight")
    p.grad = p.grad * 2
    for module in both.modules:
        module[0].weight.grad *= 2
    both.step()
    both.gradients(skipped=("1.bias",))
    both.step()
    both.equal()
    both.settle()
    both.equal()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("marked", [False, True])
def test_members_left_out(kind: tuple[str, dict], marked: bool) -> None:
    both = _Both(*kind)
    both.settle()
    for left in ([1], [], [0, 2], [1], [0, 1, 2]):
        both.gradients()
        before = [[p.detach().clone() for p in m.parameters()] for m in both.modules]
        states = [copy.deepcopy(own.state_dict()) for own in both.alone]
        skip = torch.tensor([i in left for i in range(MEMBERS)]) if marked else left
        both.step(skip=skip)
        for i in left:  # torch has no such thing: put back
            for p, old in zip(both.modules[i].parameters(), before[i], strict=True):
                p.data.copy_(old)
            both.alone[i].load_state_dict(states[i])
        both.equal()
    both.settle()
    both.equal()


class _Called(TorchDispatchMode):
    """Notes the kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_marks_of_members_are_not_read_where_the_kernel_takes_them() -> None:
    both = _Both("Adam", {"fused": True})
    both.settle()
    both.gradients()
    with _Called() as called:
        both.optimizer.step(skip=torch.tensor([False, True, False]))
    assert "aten::_fused_adam_" in called.names
    assert not called.names & {"aten::_local_scalar_dense", "aten::nonzero"}


def test_gradients_that_lie_elsewhere_are_copied_in_one_call() -> None:
    both = _Both("Adam", {})
    both.settle()
    both.gradients()
    for p in both.array.parameters():
        p.grad = p.grad.clone()
    with _Called() as called:
        both.step()
    assert "aten::_foreach_copy_" in called.names
    both.equal()
