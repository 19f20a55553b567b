"""Changes after a step was recorded are noticed: of the model, the loss, the inputs, torch's settings."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray
from tests.contract.replay import (
    MEMBERS,
    REPLAYED,
    backward,
    compare,
    compare_backward,
    mlp,
    notes,
    pair,
    warm,
    warm_backward,
)
from tests.contract.serial import loss_of

WEIGHT = 1.0


def _global_weight(output: Tensor, target: Tensor) -> Tensor:
    return WEIGHT * loss_of(output, target)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0
        self.parts = {"scale": [1.0]}

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * self.parts["scale"][0] * loss_of(output, target)


CHANGES: dict[str, Callable[[FusedArray], Any]] = {
    "a dropout rate": lambda a: setattr(a.get_submodule("3"), "p", 0.7),
    "a momentum": lambda a: setattr(a.get_submodule("1"), "momentum", 0.5),
    "a hook": lambda a: a.get_submodule("0").register_forward_hook(lambda m, args, out: out * 2),
    "a frozen parameter": lambda a: a.get_parameter("0.weight").requires_grad_(False),
    "all frozen but one": lambda a: a.requires_grad_(False).get_parameter("4.bias").requires_grad_(True),
    "a forward of its own": lambda a: setattr(a.get_submodule("2"), "forward", torch.tanh),
    "eval": lambda a: a.eval(),
    "part of it in eval": lambda a: a.get_submodule("1").eval(),
    "blocks": lambda a: setattr(a, "block_size", 2),
    "a copied member": lambda a: a.copy_member(0, 2),
    "values": lambda a: a.get_parameter("0.weight").data.mul_(2),
    "a loaded member": lambda a: a.load_member(1, a[0].state_dict()),
    "a replaced submodule": lambda a: a._skeleton.register_module("2", nn.Tanh()),
}

BACK: dict[str, Callable[[FusedArray], Any]] = {
    "a frozen parameter": lambda a: a.get_parameter("0.weight").requires_grad_(True),
    "all frozen but one": lambda a: a.requires_grad_(True),
    "eval": lambda a: a.train(),
    "blocks": lambda a: setattr(a, "block_size", MEMBERS),
}
"""What undoes a change."""
forms = pytest.mark.parametrize("split", [False, True], ids=["backward", "array(x)"])


def _warm(array: FusedArray, other: FusedArray, split: bool, x: Tensor, y: Tensor) -> None:
    if split:
        warm(array, other, x)
    else:
        warm_backward(array, other, loss_of, x, y)


@forms
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change: str, split: bool, x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    _warm(array, other, split, x, y)
    for a in (array, other):
        CHANGES[change](a)
    if split:
        compare(array, other, x, times=5)
    else:
        compare_backward(array, other, loss_of, x, y)


@forms
@pytest.mark.parametrize("change", BACK)
def test_a_change_that_is_undone_is_seen(change: str, split: bool, x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    for now in (CHANGES[change], BACK[change]):
        for a in (array, other):
            now(a)
        _warm(array, other, split, x, y)


def test_a_change_of_the_loss_is_seen(x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    array, other = pair(mlp, x.device)
    module, state, held = Weighted(), SimpleNamespace(weight=1.0), [1.0]

    def by_state(output: Tensor, target: Tensor) -> Tensor:
        return state.weight * held[0] * loss_of(output, target)

    def change_global() -> None:
        monkeypatch.setitem(globals(), "WEIGHT", 3.0)

    pairs: list[tuple[Any, Callable[[], Any]]] = [
        (_global_weight, change_global),
        (module, lambda: setattr(module, "weight", 3.0)),
        (module, lambda: module.parts["scale"].__setitem__(0, 5.0)),
        (by_state, lambda: setattr(state, "weight", 2.0)),
        (by_state, lambda: held.__setitem__(0, 7.0)),
    ]
    for loss, change in pairs:
        warm_backward(array, other, loss, x, y)
        change()
        compare_backward(array, other, loss, x, y)


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_other_inputs_and_settings_of_torch_are_other_calls(x: Tensor, y: Tensor) -> None:
    array, other = pair(mlp, x.device)
    warm_backward(array, other, loss_of, x, y)
    for inputs in ((x[:4], y[:4]), (x.t().contiguous().t(), y), (x, y), (x[:4], y[:4])):
        compare_backward(array, other, loss_of, *inputs)
    array, other = pair(mlp, x.device, torch.float32)
    x, y = x.float(), y.float()
    for a in (array, other):  # not compared: in float32 other kernels may be faster, which round otherwise
        for _ in range(4):
            backward(a, loss_of, x, y)
    assert notes(array, "backward") == REPLAYED
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        low = [backward(a, loss_of, x, y) for a in (array, other)]
    assert torch.equal(*low)
    leaf = x.clone().requires_grad_()
    backward(array, loss_of, leaf, y)
    assert leaf.grad is not None


class Listed(list):
    """A list with an attribute."""

    factor = 1.0


def test_containers_of_a_class_of_their_own_are_watched(x: Tensor, y: Tensor) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.weights = nn.Linear(5, 3), Listed([1.0])

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.weights[0] * self.weights.factor

    array, other = pair(Scaled, x.device)
    warm_backward(array, other, loss_of, x, y)
    for name, value in (("item", 2.0), ("factor", 3.0)):
        for a in (array, other):
            weights = a._skeleton.weights
            weights.__setitem__(0, value) if name == "item" else setattr(weights, name, value)
        warm_backward(array, other, loss_of, x, y)
