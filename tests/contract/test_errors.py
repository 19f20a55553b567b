"""Errors name the member, the path, the value and a remedy; afterwards, the state is as before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import FusionError, HftaError, MemberError
from tests.contract.serial import largest, loss_of, make

MEMBERS = 3
SEEDS = [1, 2, 3]
blocks = pytest.mark.parametrize("block", [3, 2, 1])


class Fussy(nn.Module):
    """Counts its calls, draws, replaces a buffer, and then refuses to go on where its weight is large."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.error = error
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        x = self.linear(x) + torch.rand(4, dtype=x.dtype)
        if self.linear.weight.abs().max() > 100:
            raise self.error("too heavy")
        return x


class Net(nn.Module):
    def __init__(self, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Fussy(error)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.drop(self.norm(x))))  # type: ignore[no-any-return]


class Unlucky(torch.autograd.Function):
    """Fails on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise ArithmeticError("no way back")


def _array(block: int, error: type[BaseException] = ValueError, heavy: int | None = 1) -> FusedArray:
    modules = make(lambda: Net(error), MEMBERS, torch.float64, torch.device("cpu"))
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    array.backward(loss_of, _x(), _y())  # so that there are gradients to be spoilt, and streams under way
    if heavy is not None:
        with torch.no_grad():
            array.get_parameter("body.1.1.linear.weight")[heavy, 2, 1] = 1e3
    return array


def _x() -> Tensor:
    return torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4).sin()


def _y() -> Tensor:
    return torch.ones(6, 2, dtype=torch.float64)


def _state(array: FusedArray) -> dict[str, Any]:
    """All that a call could change, copied."""
    return {
        "parameters": {k: p.detach().clone() for k, p in array.named_parameters()},
        "gradients": {k: None if p.grad is None else p.grad.clone() for k, p in array.named_parameters()},
        "buffers": {k: b.clone() for k, b in array.named_buffers()},
        "streams": array.generators.state_dict(),
        "missing": copy.deepcopy(array.missing_grads),
        "torch's own stream": torch.get_rng_state(),
        "mode": array.training,
        "block": array.block_size,
        "attributes": [list(array[i].body[1][1].seen) for i in range(len(array))],
        "how": array.explain().to_dict(),
    }


def _same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for part in ("parameters", "buffers", "streams", "torch's own stream"):
        torch.testing.assert_close(after[part], before[part], atol=0, rtol=0, equal_nan=True)
    for key, grad in before["gradients"].items():
        now = after["gradients"][key]
        assert (now is None) == (grad is None), key
        assert grad is None or torch.equal(now, grad), f"gradient of {key}"
    for part in ("missing", "mode", "block", "attributes", "how"):
        assert after[part] == before[part], part


CALLS: dict[str, Callable[[FusedArray], Any]] = {
    "forward": lambda array: array(_x()),
    "backward": lambda array: array.backward(loss_of, _x(), _y()),
    "evaluate": lambda array: array.evaluate(loss_of, _x(), _y()),
}


@blocks
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("heavy", range(MEMBERS))
def test_a_member_s_error_names_it_and_changes_nothing(call: str, block: int, heavy: int) -> None:
    array = _array(block, heavy=heavy)
    before = _state(array)
    with pytest.raises(MemberError, match=rf"^member {heavy}, `body\.1\.1`: ValueError: too heavy") as raised:
        CALLS[call](array)
    assert isinstance(raised.value.__cause__, Exception)
    _same(before, _state(array))


@blocks
def test_after_an_error_members_go_on_as_if_nothing_had_been(block: int) -> None:
    array, other = _array(block, heavy=None), _array(block, heavy=None)
    weight = array.get_parameter("body.1.1.linear.weight")
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[1] = 1e3
    with pytest.raises(MemberError):
        array.backward(loss_of, _x(), _y())
    with torch.no_grad():
        weight.copy_(kept)
    for one in (array, other):
        one.backward(loss_of, _x(), _y())
    assert largest(array, [other[i] for i in range(MEMBERS)]) == 0
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@blocks
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_stays_an_interrupt(error: type[BaseException], block: int) -> None:
    array = _array(block, error)
    before = _state(array)
    with pytest.raises(error):
        array.backward(loss_of, _x(), _y())
    _same(before, _state(array))


def _loss_that_fails(output: Tensor, y: Tensor) -> Tensor:
    if output.abs().max() > 50:
        raise ZeroDivisionError("too large to divide")
    return loss_of(output, y)


@blocks
def test_a_loss_that_fails_names_the_member(block: int) -> None:
    array = _array(block, heavy=None)
    with torch.no_grad():
        array.get_parameter("head.weight")[2] = 1e6
    before = _state(array)
    with pytest.raises(MemberError, match=r"^member 2, the loss or metric: ZeroDivisionError: too large to divide"):
        array.backward(_loss_that_fails, _x(), _y())
    with pytest.raises(MemberError, match=r"^member 2, the loss or metric: ZeroDivisionError: too large to divide"):
        array.evaluate(_loss_that_fails, _x(), _y())
    _same(before, _state(array))


def _loss_without_way_back(output: Tensor, y: Tensor) -> Tensor:
    return Unlucky.apply(loss_of(output, y)) if output.abs().max() > 50 else loss_of(output, y)


@blocks
def test_an_error_on_the_way_back_changes_nothing(block: int) -> None:
    """Also the gradients of the members before it, which have been added up already."""
    array = _array(block, heavy=None)
    with torch.no_grad():
        array.get_parameter("head.weight")[2] = 1e6
    x = _x().requires_grad_()
    x.grad = torch.ones_like(x)
    before = _state(array)
    with pytest.raises(HftaError, match="ArithmeticError: no way back"):
        array.backward(_loss_without_way_back, x, _y())
    _same(before, _state(array))
    assert torch.equal(x.grad, torch.ones_like(x))


@blocks
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: a(hfta.per_member(torch.zeros(2, 6, 4).double())), "per_member input: another number of members"),
        (lambda a: a.backward(loss_of, _x(), hfta.per_member(torch.zeros(4, 6, 2))), "another number of members"),
        (lambda a: a.backward(lambda o, _: o, _x()), "loss_fn: the loss of a member must be a scalar"),
        (lambda a: a.backward(lambda o, _: 1.0, _x()), "loss_fn: the loss of a member is a number without a gradient"),
        (lambda a: a.backward(lambda o, _: o.detach().sum(), _x()), "depends on nothing that requires a gradient"),
    ],
)
def test_what_is_given_wrongly_changes_nothing(call: Callable[[FusedArray], Any], words: str, block: int) -> None:
    array = _array(block, heavy=None)
    before = _state(array)
    with pytest.raises(FusionError, match=words):
        call(array)
    _same(before, _state(array))


_one = nn.Linear(2, 2)
REFUSED: dict[str, tuple[Any, dict[str, str]]] = {
    "an empty list": ([], {"where": "fuse", "accepted": "at least one"}),
    "a number": ([_one, 3], {"where": "member 1", "got": "3", "accepted": "Module"}),
    "one module twice": ([nn.Linear(2, 2), _one, _one], {"where": "member 2", "what": "member 1", "remedy": "build"}),
    "two devices": (
        [nn.Linear(2, 2), nn.Linear(2, 2, device="meta")],
        {"where": "member 1", "got": "meta", "remedy": "move"},
    ),
    "unlike layers": (
        [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Bilinear(4, 4, 4))],
        {"where": "0.weight", "got": "[[4, 4], [4, 4, 4]]", "remedy": "separate arrays"},
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_can_not_be_fused_says_why(what: str) -> None:
    modules, said = REFUSED[what]
    before = [copy.deepcopy(m.state_dict()) if isinstance(m, nn.Module) else m for m in modules]
    with pytest.raises(FusionError) as raised:
        hfta.fuse(modules)
    for part, words in said.items():
        assert words in getattr(raised.value, part), raised.value
    assert raised.value.accepted or raised.value.remedy
    for module, kept in zip(modules, before, strict=True):
        if isinstance(module, nn.Module):
            assert list(module.state_dict()) == list(kept)


@pytest.mark.parametrize(
    ("got", "shown"),
    [
        (torch.zeros(4, 30), "got Tensor [4, 30]"),
        (torch.zeros(2), "got tensor([0., 0.])"),
        ([torch.eye(2)], "got [tensor([[1., 0.], [0., 1.]])]"),
        ("a  b", "got 'a  b'"),
    ],
    ids=["matrix", "vector", "list", "spaces"],
)
def test_a_message_is_one_line(got: Any, shown: str) -> None:
    assert str(FusionError("no good", got=got)) == f"no good; {shown}"


def test_a_member_s_error_keeps_its_fields_on_the_way() -> None:
    """As it travels from the worker process to the kernel: copying goes the way of pickling, by `__reduce__`."""
    array = _array(3)
    with pytest.raises(MemberError) as raised:
        array(_x())
    again = copy.copy(raised.value)
    assert str(again) == str(raised.value)
    assert again.where == "member 1, `body.1.1`"
