"""What a loss reads of other members is refused; what leaves an array by its attributes has the member axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import PerMember
from hfta_nb.errors import FusionError, MemberError
from tests.contract.handed_over import Regressor, numbers

X, Y = numbers(12, 4), numbers(12, 1, seed=1)
pytestmark = pytest.mark.usefixtures("verified")


def modules(build: Callable[..., nn.Module] = Regressor, *sizes: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [build(n).double() for n in sizes] if sizes else [build().double() for _ in range(3)]


def captured(array: hfta.FusedArray, optimizer: Any) -> dict[str, Callable[[], Tensor]]:
    """What a loss may hold of all members."""
    weight, groups = array.get_parameter("layers.0.weight"), optimizer.param_groups
    parameters, detached, row = list(array.parameters()), weight.detach(), weight.detach()[0]
    return {
        "parameter": lambda: weight.abs().sum(),
        "parameters": lambda: sum(p.abs().sum() for p in parameters),
        "param_groups": lambda: sum(p.abs().sum() for group in groups for p in group["params"]),
        "detached": detached.norm,
        "row": lambda: torch.linalg.norm(row),
        "item": lambda: detached[1, 0, 0].item(),
        "member": lambda: array[1].layers[0].weight.detach().sum(),
        "no_grad": lambda: torch.no_grad()(lambda: weight.sum())(),
    }


@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("name", captured(hfta.fuse(modules()), hfta.optim.Adam(hfta.fuse(modules()))))
def test_a_loss_that_reads_all_members_is_refused_in_the_first_call(name: str, block_size: int) -> None:
    array = hfta.fuse(modules())
    array.block_size = block_size
    read = captured(array, hfta.optim.Adam(array))[name]
    array.backward(F.mse_loss, X, Y)  # other losses are known
    with pytest.raises(FusionError, match=r"hfta_nb\.member\(\)"):
        array.backward(lambda o, y: F.mse_loss(o, y) + read() * o.mean(), X, Y)
    with pytest.raises(FusionError, match=r"hfta_nb\.member\(\)"):
        array.evaluate(lambda o, y: F.mse_loss(o, y) + read(), X, Y)
    with pytest.raises(FusionError, match=r"hfta_nb\.member\(\)"):
        array.losses(lambda o, y: F.mse_loss(o, y) + read(), array(X), Y)


def test_metrics_read_their_member_eagerly_and_replayed() -> None:
    array = hfta.fuse(modules())
    expected = torch.stack([sum((p.abs().sum() for p in m.parameters()), torch.zeros(())) for m in array])
    for _ in range(5):
        found = array.evaluate(lambda o, y: sum(p.abs().sum() for p in hfta.member().parameters()), X, Y)
        torch.testing.assert_close(found, expected.detach())


def test_a_penalty_beside_array_losses_is_that_of_array_backward() -> None:
    array = hfta.fuse(modules())
    array.backward(lambda o, y: F.mse_loss(o, y) + 0.1 * sum(p.abs().sum() for p in array.parameters()), X, Y)
    expected = [p.grad.clone() for p in array.parameters()]
    array.zero_grad()
    penalty = sum(p.abs().flatten(1).sum(1) for p in array.parameters())
    (array.losses(F.mse_loss, array(X), Y) + 0.1 * penalty).sum().backward()
    torch.testing.assert_close([p.grad for p in array.parameters()], expected)


@pytest.mark.parametrize("sizes", [(), (2, 3, 5)], ids=["alike", "unlike"])
def test_members_of_any_width_read_their_own_parameters(sizes: tuple[int, ...]) -> None:
    class Wide(Regressor):
        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

    plain, array = modules(Wide, *sizes), hfta.fuse(modules(Wide, *sizes))

    def loss(model: Callable[[], Any]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda o, y: F.mse_loss(o, y) + sum(p.pow(2).mean() for p in model().parameters())

    for _ in range(4):
        array.zero_grad()
        losses = array.backward(loss(hfta.member), X, Y)
    for i, module in enumerate(plain):
        value = loss(lambda module=module: module)(module(X), Y)
        value.backward()
        torch.testing.assert_close(losses[i], value.detach())
        for name, p in module.named_parameters():
            box = tuple(slice(0, n) for n in p.shape)
            torch.testing.assert_close(array.get_parameter(name).grad[i][box], p.grad)


def test_there_is_no_member_outside_of_a_loss() -> None:
    with pytest.raises(FusionError, match="no loss or metric of a member is being computed"):
        hfta.member()
    array = hfta.fuse(modules())
    with pytest.raises(MemberError):
        array.backward(lambda o, y: F.mse_loss(o, y) / (1 // 0), X, Y)
    assert array.get_parameter("layers.0.weight").shape == (3, 8, 4)  # the array shows all members again
    with pytest.raises(FusionError, match="no loss or metric"):
        hfta.member()


class Keeping(nn.Module):
    """Keeps several kinds of values."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer, self.head, self.calls = nn.Linear(4, width), nn.Linear(width, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        self.calls += 1
        self.state, self.width = (h, {"cell": h.detach() ** 2}), h.shape[-1]
        found: Tensor = self.head(h)
        return found


def test_attributes_show_all_members_and_a_member_shows_its_own() -> None:
    array, plain = hfta.fuse(modules(Keeping)), modules(Keeping)
    for _ in range(2):
        array(X)
        for module in plain:
            module(X)
    state = array.state
    assert (state[0].shape, state[1]["cell"].shape, state[0].requires_grad) == ((3, 12, 4), (3, 12, 4), True)
    assert (array.calls, array.width) == (2, 4)
    for i, module in enumerate(plain):
        torch.testing.assert_close(state[0][i], module.state[0])
        torch.testing.assert_close(array[i].state[1]["cell"], module.state[1]["cell"])
    with torch.no_grad():
        array(X)
    assert array.state[0].shape == (3, 12, 4)
    assert not array.state[0].requires_grad


def test_attributes_of_unlike_members() -> None:
    array, plain = hfta.fuse(modules(Keeping, 2, 3)), modules(Keeping, 2, 3)
    array(X)
    for module in plain:
        module(X)
    assert isinstance(array.width, PerMember)
    assert array.width.value == [2, 3]
    for own, module in zip(array.state[0].value, plain, strict=True):
        torch.testing.assert_close(own, module.state[0])


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = found = self.cell(x, self.hidden)
        return found


WRITES: dict[str, Callable[[Any], None]] = {
    "detached": lambda m: setattr(m, "hidden", m.hidden.detach()),
    "scaled": lambda m: setattr(m, "hidden", 0.5 * m.hidden.detach()),
    "some samples": lambda m: setattr(m, "hidden", m.hidden.detach().index_select(-2, torch.arange(12))),
    "none": lambda m: setattr(m, "hidden", None),
    "of one member": lambda m: setattr(m, "hidden", torch.ones(12, 4, dtype=torch.float64)),
    "in place": lambda m: m.hidden.mul_(0.5),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_to_an_attribute_reaches_each_member(name: str) -> None:
    array, plain, write = hfta.fuse(modules(Stateful)), modules(Stateful), WRITES[name]
    for _ in range(4):
        with torch.no_grad():
            out = array(X)
            expected = torch.stack([module(X) for module in plain])
        torch.testing.assert_close(out, expected)
        write(array)
        for module in plain:
            write(module)


def test_one_value_per_member_can_be_written() -> None:
    array, plain = hfta.fuse(modules(Stateful)), modules(Stateful)
    array(X)
    rows = numbers(3, 12, 4, seed=3)
    array.hidden = hfta.per_member(rows)
    for module, row in zip(plain, rows, strict=True):
        module.hidden = row
    torch.testing.assert_close(array(X), torch.stack([module(X) for module in plain]))
