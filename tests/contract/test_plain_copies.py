"""Copies of modules for the members that are compared."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.eager.plain_copies import copied_module, plain_member
from tests.contract.serial import make


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.norm, self.recurrent = nn.BatchNorm1d(5), nn.LSTM(5, 5)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
        self.listed = [self.first, {"weight": self.first.weight, "sizes": (1, [2])}]
        self.bound, self.plain_tensor = self.first.forward, torch.ones(3)
        self.hooked = self.first.register_forward_hook(lambda module, args, result: result + 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.second(self.first(x))) + self.bound(x)
        return self.scaled(self.recurrent(h)[0])  # type: ignore[no-any-return]


def test_a_copy_is_what_deepcopy_makes() -> None:
    module, x = Holder(), torch.randn(6, 5)
    new = copied_module(module, {})
    assert isinstance(new, Holder)
    theirs = copy.deepcopy(module)
    torch.testing.assert_close(new(x), theirs(x))
    assert [*new.state_dict()] == [*theirs.state_dict()]
    assert new.second.weight is new.first.weight is new.listed[1]["weight"]  # type: ignore[index]
    assert new.listed[0] is new.first is new.bound.__self__  # type: ignore[attr-defined]
    ids = {id(v) for v in (*module.modules(), *module.parameters(), *module.buffers(), module.plain_tensor)}
    assert not ids & {id(v) for v in (*new.modules(), *new.parameters(), *new.buffers(), new.plain_tensor)}
    new.listed[1]["sizes"][1].append(3)  # type: ignore[index]
    new.first._forward_hooks.clear()
    assert module.listed[1]["sizes"] == (1, [2])  # type: ignore[index]
    assert len(module.first._forward_hooks) == 1


def test_a_class_that_says_how_it_is_copied_is_asked() -> None:
    class Own(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> Own:
            new = Own(5, 5)
            new.copies = 1  # type: ignore[assignment]
            return new

    new = copied_module(nn.Sequential(Own(5, 5), nn.Tanh()), {})
    assert new.get_submodule("0").copies == 1


def test_a_member_as_a_plain_module_has_its_own_tensors() -> None:
    modules = make(lambda: nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), 3, torch.float64, torch.device("cpu"))
    array = hfta.fuse(modules)
    plain, before = plain_member(array._state, 1), {k: v.clone() for k, v in array.state_dict().items()}
    for name, value in modules[1].state_dict().items():
        torch.testing.assert_close(plain.state_dict()[name], value)
    with torch.no_grad():
        for v in (*plain.parameters(), *plain.buffers()):
            v.zero_()
    for name, value in array.state_dict().items():
        torch.testing.assert_close(value, before[name])
