"""Attributes that change after the first call, by the user or by the model: as in the plain modules, and verified."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.eager.verified_kinds import _MOST_PATHS
from hfta_nb.errors import ArrayWarning, FusionError
from tests.contract.handed.shared_objects import OfParts
from tests.contract.handed_over import numbers
from tests.contract.serial import make
from tests.contract.test_verification import counted, losses, under_vmap

CPU = torch.device("cpu")
FORMS = ["backward", "array(x)", "evaluate"]


def inputs() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def alone(modules: list[nn.Module], x: Tensor) -> Tensor:
    return torch.stack([F.mse_loss(module(x), x) for module in modules]).detach()


def as_alone(array: hfta.FusedArray, modules: list[nn.Module], x: Tensor) -> None:
    """The next call gives what the plain modules give."""
    torch.testing.assert_close(losses(array, "backward", x), alone(modules, x), atol=1e-12, rtol=0)


def fused(build: Callable[[], nn.Module], size: int = 3) -> tuple[hfta.FusedArray, list[nn.Module], Tensor]:
    """An array with this block size, its three plain modules, and inputs."""
    modules = make(build, 3, torch.float64, CPU)
    array = hfta.fuse(modules)
    array.block_size = size
    return array, modules, inputs()


class Calling(nn.Module):
    """A linear layer that counts its calls; `change` makes something of the layer's output and the number."""

    def __init__(self, change: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.linear, self.calls, self.change = nn.Linear(5, 5), 0, change

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.change(self.linear(x), self.calls)


def warming() -> nn.Module:
    """Takes another path from the fourth call on, which comes to something else under `vmap`."""
    return Calling(lambda h, calls: h + 1 if calls > 3 and under_vmap() else h)


def counting() -> nn.Module:
    """Passes a number that is another one in each call."""
    return Calling(torch.mul)


@pytest.mark.parametrize("form", FORMS)
def test_a_path_that_a_model_takes_later_is_compared(form: str, verified: None, self_tuning: None) -> None:
    modules, x = make(warming, 3, torch.float64, CPU), inputs()
    array, wanted = hfta.fuse(modules), alone(modules, x)
    found, told = [], []
    for _ in range(6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ArrayWarning)
            found.append(losses(array, form, x))
        told.append([w for w in caught if issubclass(w.category, ArrayWarning)])
    for own in found:
        torch.testing.assert_close(own, wanted, atol=1e-12, rtol=0)
    assert [len(w) for w in told] == [0, 0, 0, 1, 0, 0]
    assert array[2].calls == 6


def test_gradients_of_a_new_path_are_added_once(verified: None) -> None:
    modules, x = make(warming, 3, torch.float64, CPU), inputs()
    array = hfta.fuse(modules)
    for _ in range(3):
        array.backward(F.mse_loss, x, x)
    with pytest.warns(ArrayWarning, match="than alone"):
        array.backward(F.mse_loss, x, x)
    for i, module in enumerate(modules):
        (4 * F.mse_loss(module(x), x)).backward()
        torch.testing.assert_close(array.get_parameter("linear.weight").grad[i], module.linear.weight.grad)


class Printing(nn.Module):
    """Its calls are never replayed. With another activation than at first it goes wrong under `vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(5, 5), "tanh"

    def forward(self, x: Tensor) -> Tensor:
        print(end="")
        h = self.linear(x)
        return torch.tanh(h) if self.kind == "tanh" else torch.relu(h + 1 if under_vmap() else h)


@pytest.mark.parametrize("root", [False, True], ids=["submodule", "root"])
def test_an_attribute_that_a_user_changes_is_compared_where_nothing_is_replayed(root: bool, verified: None) -> None:
    array, modules, x = fused(lambda: Printing() if root else nn.Sequential(Printing()))
    for _ in range(4):
        losses(array, "backward", x)
    for one in (array, *modules):
        (one if root else one.get_submodule("0")).kind = "relu"  # type: ignore[assignment]
    with pytest.warns(ArrayWarning, match="off by"):
        as_alone(array, modules, x)


def test_paths_are_not_compared_without_end(monkeypatch: pytest.MonkeyPatch, verified: None) -> None:
    seen, x = counted(monkeypatch), inputs()
    array = hfta.fuse(make(counting, 3, torch.float64, CPU))
    for _ in range(30):
        losses(array, "backward", x)
    assert 2 < len(seen) <= _MOST_PATHS


# Attributes that the user changes.


class Scaled(nn.Module):
    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.linear, self.alone = nn.Linear(5, 5), alone
        self.scales, self.factor = [1.0], torch.ones(5, dtype=torch.float64)
        self.options, self.named = {"a": {"b": 1.0}}, SimpleNamespace(scale=1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.alone and bool(self.linear.weight.sum() > 1e9):
            return x
        return self.linear(x) * self.scales[0] * self.factor * self.options["a"]["b"] * self.named.scale  # type: ignore[no-any-return]


CHANGES: dict[str, Callable[[Any], None]] = {
    "list in place": lambda m: m.scales.__setitem__(0, 3.0),
    "list": lambda m: setattr(m, "scales", [3.0]),
    "tensor in place": lambda m: m.factor.mul_(3.0),
    "tensor": lambda m: setattr(m, "factor", torch.full((5,), 3.0, dtype=torch.float64)),
    "dict in a dict": lambda m: m.options["a"].update(b=3.0),
    "object": lambda m: setattr(m.named, "scale", 3.0),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("way", ["together", "one by one", "submodule one by one"])
def test_what_a_user_changes_is_read_by_all_members(way: str, change: str, verified: None) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 5), Scaled(alone=way.startswith("submodule")))

    array, modules, x = fused(build, 1 if way == "one by one" else 3)
    for _ in range(2):
        losses(array, "backward", x)
    for one in (array, *modules):
        CHANGES[change](one.get_submodule("1"))
    as_alone(array, modules, x)


class Stateful(nn.Module):
    """Keeps its last output, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls, self.log = nn.Linear(5, 5), 0, [0.0]
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.linear(x) * self.calls + len(self.log)
        self.log.append(1.0)
        if self.hidden is not None:
            h = h + self.hidden
        self.hidden = h.detach()
        return h  # type: ignore[no-any-return]


WRITES: dict[str, Callable[[Any], None]] = {
    "as at first": lambda m: setattr(m, "hidden", None),
    "tensor": lambda m: setattr(m, "hidden", torch.ones(6, 5, dtype=torch.float64)),
    "number": lambda m: setattr(m, "calls", 0),
    "in place": lambda m: m.log.clear(),
}


@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("size", [1, 3], ids=["one by one", "together"])
@pytest.mark.parametrize("root", [False, True], ids=["submodule", "root"])
def test_a_write_to_what_members_keep_is_given_to_all_members(root: bool, size: int, write: str) -> None:
    def stateful(module: nn.Module) -> nn.Module:
        return module if root else module.get_submodule("0")

    array, modules, x = fused(lambda: Stateful() if root else nn.Sequential(Stateful()), size)
    for _ in range(3):
        as_alone(array, modules, x)
    for one in (array, *modules):
        WRITES[write](stateful(one))
    taken = array[1]  # before the next call
    assert (stateful(taken).calls, stateful(taken).log) == (stateful(modules[1]).calls, stateful(modules[1]).log)
    for _ in range(2):
        as_alone(array, modules, x)


def test_an_array_shows_what_its_members_keep() -> None:
    array, modules, x = fused(Stateful)
    losses(array, "backward", x)
    alone(modules, x)
    assert (array.calls, array.log) == (1, [0.0, 1.0])
    torch.testing.assert_close(array.hidden, torch.stack([m.hidden for m in modules]))
    chosen = array.select([2, 0])
    as_alone(chosen, [modules[2], modules[0]], x)
    torch.testing.assert_close(losses(array, "backward", x)[1], alone(modules[1:2], x)[0], atol=1e-12, rtol=0)


def test_an_object_under_two_names_is_one_when_it_is_written() -> None:
    modules = make(OfParts, 4, torch.float64, CPU)
    array, x, y = hfta.fuse(modules), numbers(12, 4), numbers(12, 1)
    for call in range(6):
        found = array.backward(F.mse_loss, x, y)
        expected = [F.mse_loss(module(x), y) for module in modules]
        torch.testing.assert_close(found, torch.stack(expected).detach(), atol=1e-12, rtol=0)
        for module in (array, *modules) if call % 2 else ():
            module.context.calls = 3


class UnderTwoNames(nn.Module):
    """A list that is an attribute, and in an object that is another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.context = SimpleNamespace(sums=[], calls=0)
        self.sums = self.context.sums

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        self.sums.append(found.detach().sum())
        self.context.calls += 1
        return found * (1 + sum(self.context.sums) / self.context.calls)


@pytest.mark.parametrize("form", ["array(x)", "evaluate"])
def test_what_two_attributes_share_stays_shared_when_a_call_is_undone(
    form: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))  # nothing is known: schedules are tried, and the calls undone
    array, modules, x = fused(UnderTwoNames)
    for _ in range(5):
        found = losses(array, form, x)
        torch.testing.assert_close(found, alone(modules, x), atol=1e-12, rtol=0)


def test_what_the_user_writes_into_a_list_is_seen_wherever_members_hold_it() -> None:
    def clear_attribute(model: Any) -> None:
        model.sums.clear()

    def clear_within(model: Any) -> None:
        model.context.sums.clear()

    def replace(model: Any) -> None:
        model.sums = []

    array, modules, x = fused(UnderTwoNames)
    for change in (clear_attribute, clear_within, replace, clear_within):
        for _ in range(2):
            as_alone(array, modules, x)
        for model in (array, *modules):
            change(model)
    as_alone(array, modules, x)


class KeepsView(nn.Module):
    """Keeps a view of its buffer, and writes into one of the two in every call."""

    def __init__(self, into: str, again: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("scale", torch.ones(6))
        self.view: Any = None
        self.into, self.again = into, again

    def forward(self, x: Tensor) -> Tensor:
        if self.view is None or self.again:
            self.view = self.scale[:3]  # type: ignore[index]
        target = self.view if self.into.startswith("view") else self.scale
        (target.data if "data" in self.into else target).mul_(0.9)
        found: Tensor = self.layer(x) * self.view
        return found * self.scale[:3]  # type: ignore[index]


@pytest.mark.parametrize("into", ["view", "view.data", "buffer", "buffer.data"])
def test_a_view_of_a_buffer_that_lasts_longer_than_a_call(into: str) -> None:
    modules = [KeepsView(into, again=False).double() for _ in range(3)]
    array, x = hfta.fuse(modules), inputs()
    array(x)
    if into.startswith("view"):
        with pytest.raises(FusionError, match=r"view: the model keeps a view, .*take the view in each call"):
            array(x)
    else:
        with pytest.warns(ArrayWarning, match=r"kept a view of a buffer, .*view has the values from before"):
            array(x)


@pytest.mark.parametrize("into", ["view", "view.data", "buffer", "buffer.data"])
def test_a_view_of_a_buffer_that_each_call_takes_anew(into: str) -> None:
    plain = [KeepsView(into, again=True).double() for _ in range(3)]
    modules = [KeepsView(into, again=True).double() for _ in range(3)]
    for module, own in zip(modules, plain, strict=True):
        module.load_state_dict(own.state_dict())
    array, x = hfta.fuse(modules), inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        for _ in range(6):
            torch.testing.assert_close(array(x), torch.stack([m(x) for m in plain]), atol=1e-12, rtol=0)
