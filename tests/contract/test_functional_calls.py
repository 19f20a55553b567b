"""Arrays within `torch.func`: `functional_call` gives them other tensors; transforms are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, TransformError

from .serial import Branching, make
from .test_verification import CPU

DOUBLE = torch.float64
MEMBERS = 3


def norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def others(array: Any, learning: bool) -> dict[str, Tensor]:
    """Other values for the parameters."""
    return {name: torch.randn_like(p).requires_grad_(learning) for name, p in array.named_parameters()}


def alone(modules: Sequence[nn.Module], tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """The same call of each plain module."""
    rows = [{name: t[i] for name, t in tensors.items()} for i in range(len(modules))]
    return torch.stack([functional_call(m, own, (x,)) for m, own in zip(modules, rows, strict=True)])


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
@pytest.mark.each("build", "verify")
@pytest.mark.parametrize("verify", ["first", "always", "never"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [norm, Branching])
def test_other_parameters_are_used_and_get_the_gradients(
    build: Callable[[], nn.Module], training: bool, verify: str
) -> None:
    modules = [m.train(training) for m in make(build, MEMBERS, DOUBLE, CPU)]
    array = hfta.fuse(copy.deepcopy(modules), verify=verify).train(training)
    for call in range(6):
        x = torch.randn(6, 5, dtype=DOUBLE)
        if call == 3:  # calls with the array's own parameters come between
            torch.testing.assert_close(array(x), torch.stack([m(x) for m in modules]))
        given = others(array, learning=call % 2 == 0)
        twin = {name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in given.items()}
        with torch.set_grad_enabled(call < 4):
            out, expected = functional_call(array, given, (x,)), alone(modules, twin, x)
        torch.testing.assert_close(out, expected)
        if out.requires_grad and call % 2 == 0:
            out.square().sum().backward()
            expected.square().sum().backward()
            for name, t in given.items():
                torch.testing.assert_close(t.grad, twin[name].grad)
    assert all(p.grad is None for p in array.parameters())
    torch.testing.assert_close(array[1].state_dict(), modules[1].state_dict())


@pytest.mark.parametrize("verify", ["first", "never"])
def test_other_buffers_are_updated_and_the_arrays_own_are_kept(verify: str) -> None:
    modules = make(norm, MEMBERS, DOUBLE, CPU)
    array = hfta.fuse(copy.deepcopy(modules), verify=verify)
    for _ in range(3):
        x = torch.randn(6, 5, dtype=DOUBLE)
        torch.testing.assert_close(array(x), torch.stack([m(x) for m in modules]))
        buffers = {name: b.clone() + 1 for name, b in array.named_buffers()}
        twin = {name: b.clone() for name, b in buffers.items()}
        parameters = others(array, learning=False)
        out = functional_call(array, (parameters, buffers), (x,))
        torch.testing.assert_close(out, alone(modules, parameters | twin, x))
        for name, b in buffers.items():
            torch.testing.assert_close(b, twin[name])
        torch.testing.assert_close(array[2].state_dict(), modules[2].state_dict())


def test_gradients_of_gradients_by_updated_parameters() -> None:
    """A step of model-agnostic meta-learning (MAML)."""
    modules = make(smooth, MEMBERS, DOUBLE, CPU)
    array = hfta.fuse(copy.deepcopy(modules))

    def outer(module: nn.Module, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        """The losses after an inner step."""

        def losses(tensors: dict[str, Tensor]) -> Tensor:
            return functional_call(module, tensors, (x,)).square().mean(dims)  # type: ignore[no-any-return]

        own = dict(module.named_parameters())
        grads = torch.autograd.grad(losses(own).sum(), list(own.values()), create_graph=True)
        return losses({name: p - 0.1 * g for (name, p), g in zip(own.items(), grads, strict=True)})

    for _ in range(3):
        x = torch.randn(6, 5, dtype=DOUBLE)
        losses, expected = outer(array, x, (1, 2)), torch.stack([outer(m, x, (0, 1)) for m in modules])
        torch.testing.assert_close(losses, expected)
        losses.sum().backward()
        expected.sum().backward()
    for i, module in enumerate(modules):
        for p, own in zip(array.parameters(), module.parameters(), strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad[i], own.grad)


@pytest.mark.parametrize("calls", [0, 4])
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.vmap])
def test_transforms_are_refused_with_the_way_out(transform: Callable[..., Any], calls: int) -> None:
    array = hfta.fuse(make(smooth, MEMBERS, DOUBLE, CPU))
    x = torch.randn(6, 5, dtype=DOUBLE)
    for _ in range(calls):
        array(x)
    with pytest.raises(TransformError, match=r"torch.func can't follow an array; transform a member, array\[i\]"):
        transform(lambda x: array(x).sum())(x)
    grads = torch.func.grad(lambda x: array[1](x).sum())(x)
    assert grads.shape == x.shape


def test_a_loss_may_call_another_array() -> None:
    teachers, modules = make(smooth, 2, DOUBLE, CPU), make(norm, MEMBERS, DOUBLE, CPU)
    teacher, array = hfta.fuse(copy.deepcopy(teachers)), hfta.fuse(copy.deepcopy(modules))
    x = torch.randn(6, 5, dtype=DOUBLE)

    def loss_of(out: Tensor, _: Any) -> Tensor:
        with torch.no_grad():
            goal = teacher(x).mean(0)
        return (out - goal).square().mean()

    for _ in range(3):
        array.zero_grad()
        losses = array.backward(loss_of, x, x)
        expected = torch.stack([loss_of(m(x), None) for m in modules])
        torch.testing.assert_close(losses, expected.detach())


def test_no_warning_of_a_functional_call(recwarn: pytest.WarningsRecorder) -> None:
    array = hfta.fuse(make(norm, MEMBERS, DOUBLE, CPU))
    functional_call(array, others(array, learning=True), (torch.randn(6, 5, dtype=DOUBLE),))
    assert not [w for w in recwarn if issubclass(w.category, ArrayWarning)]
