"""Models whose attributes and hooks refer to their own modules and parameters, which copies of them must follow."""

from __future__ import annotations

import functools
import math
from collections import defaultdict, deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.eager.fingerprint import fingerprint
from hfta_nb.engine.eager.module_references import note_references, rebound
from hfta_nb.engine.eager.mutable_values import copy_value
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.held_values import walk
from tests.contract.serial import largest, loss_of, make, target_for

SEEDS = [101, 102, 103]


class ClosureHook(nn.Module):
    """A hook that is a function over the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(5, 3), nn.Parameter(torch.rand(3) + 0.5)
        self.first.register_forward_hook(lambda module, args, out: out * self.scale)

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.first(x))


class Functions(nn.Module):
    """Functions over layers and over a parameter, beside the layers."""

    def __init__(self) -> None:
        super().__init__()
        layer, norm = nn.Linear(5, 3), nn.BatchNorm1d(3)
        self.layer, self.norm, weight = layer, norm, layer.weight
        self.calls = [lambda x: norm(layer(x)), functools.partial(F.linear, weight=weight), layer.forward]
        self.calls.append(lambda x, scale=layer.bias: (x @ weight.T) * scale)

    def forward(self, x: Tensor) -> Any:
        return sum(call(x) for call in self.calls)


class Recorder(nn.Module):
    """Installs a hook in its first call, which is a method of the model and keeps what it sees."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.inner, self.seen, self.installed, self.branches = nn.Linear(5, 3), list[Tensor](), False, branches

    def keep(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.seen.append(out.detach())

    def forward(self, x: Tensor) -> Any:
        self.seen.clear()
        if not self.installed:
            self.inner.register_forward_hook(self.keep)
            self.installed = True
        out = torch.tanh(self.inner(x)) + self.seen[-1]
        return out * 2 if self.branches and out.sum().item() > 0 else out


class Cell(nn.Module):
    """Adds a state that the model gives it before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.state = nn.Linear(5, 5), None

    def forward(self, x: Tensor) -> Any:
        assert self.state is not None, "the model sets it first"
        state, self.state = self.state, None
        return torch.tanh(self.linear(x) + state)


class Routed(nn.Module):
    """Cells in a dict of lists that gets a key when it is asked for one."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.routes, self.last = nn.ModuleList([Cell(), Cell()]), defaultdict(list), nn.Linear(5, 3)
        self.routes[0] = [self.cells[1]]

    def forward(self, x: Tensor) -> Any:
        for step in range(2):
            for cell in self.cells:
                cell.state = x.mean(0)
            x = self.cells[0](x)
            for cell in self.routes[step]:
                x = cell(x)
        return self.last(x)


class WantsGradient(nn.Module):
    """Lets its input require a gradient, as a reentrant checkpoint needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        inner = torch.utils.checkpoint.checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return self.last(torch.tanh(inner))


class Static(nn.Module):
    """Attributes that `copy.deepcopy` refuses although nothing in them can change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.function, self.module = nn.Linear(5, 3), staticmethod(torch.tanh), math

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x)) * self.module.pi


ROWS: dict[str, Any] = {
    "hook over the model": ClosureHook,
    "functions over layers": Functions,
    "late hook": lambda: Recorder(False),
    "late hook, one by one": lambda: Recorder(True),
    "modules in a dict": Routed,
    "input that wants a gradient": WantsGradient,
    "static": Static,
}


@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("name", ROWS)
def test_as_alone(name: str, block: int) -> None:
    build, device = ROWS[name], torch.device("cpu")
    x = torch.randn(6, 5, dtype=torch.float64)
    y = target_for(make(build, 1, torch.float64, device)[0], x.clone())
    array = hfta.fuse(make(build, 3, torch.float64, device), SEEDS)
    array.block_size = block
    optimizer = hfta.optim.SGD(array, lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(array.backward(loss_of, x.clone(), y))
        optimizer.step()
    modules = make(build, 3, torch.float64, device)  # others, which no copy can refer to
    for i, module in enumerate(modules):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(module(x.clone()), y)
            loss.backward()
            optimizer.step()
            assert losses[step][i].item() == pytest.approx(loss.item(), abs=1e-10)
    assert largest(array, modules) <= 1e-10
    torch.testing.assert_close(array(x.clone())[1], modules[1](x.clone()), atol=1e-10, rtol=0)
    back = array[1]
    torch.testing.assert_close(back(x.clone()), modules[1](x.clone()), atol=1e-10, rtol=0)


class Odd(tuple[Any, ...]):
    """A tuple that forbids to ask for its length."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_values_in_containers_of_any_kind_are_found() -> None:
    layer = nn.Linear(2, 2)
    assert fingerprint(Odd((1, 2))) == fingerprint(Odd((1, 2))) != fingerprint(Odd((1, 3)))
    assert any(v is layer for v in walk([{"a": deque([Odd((frozenset([layer]),))])}]))


def test_functions_of_a_copy_refer_to_the_copy() -> None:
    module = Functions()
    made = copied_module(module)
    assert isinstance(made, Functions)
    with torch.no_grad():
        for p in made.parameters():
            p.zero_()
    x = torch.ones(2, 5)
    assert float(made(x).detach().abs().sum()) == 0
    assert float(module(x).detach().abs().sum()) > 0
    shared = nn.Linear(5, 5)
    module.calls = [lambda x: shared(x)]
    assert copied_module(module).calls[0] is module.calls[0]  # type: ignore[union-attr]


def test_values_follow_the_modules() -> None:
    one, other = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    value = {"layers": [one[0], one[1]], "method": one[1].forward, "number": 3}
    note_references([value], dict(one.named_modules()), "inner")
    new = rebound(value, dict(other.named_modules()), "inner")
    assert new["layers"][0] is other[0]
    assert new["method"].__self__ is other[1]
    assert rebound(value, dict(one.named_modules()), "inner") is value
    assert rebound(value, dict(other.named_modules()), "elsewhere") is value
    assert copy_value(defaultdict(list, a=[one]), {})["a"][0] is one


class Solving(nn.Module):
    """Gives a submodule a function over its layers and over the input, which cannot run member by member."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.solver = nn.Linear(5, 5), Solver()

    def forward(self, x: Tensor) -> Any:
        given = self.layer(x)
        return self.solver(lambda z: torch.tanh(self.layer(z) + given), torch.zeros_like(x))


class Solver(nn.Module):
    """Iterates a function until it changes little; a hook on the result removes itself in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.hook = None

    def forward(self, function: Any, z: Tensor) -> Any:
        for _ in range(5):
            new = function(z)
            if (new - z).detach().abs().max().item() < 1e-9:
                break
            z = new

        def double(grad: Tensor) -> Tensor:
            if self.hook is not None:
                self.hook.remove()
            return grad * 2

        self.hook = z.register_hook(double) if z.requires_grad else None
        return z


@pytest.mark.parametrize("split", [False, True])
def test_what_calls_a_submodule_runs_alone_where_the_submodule_cannot(split: bool) -> None:
    device = torch.device("cpu")
    array = hfta.fuse(make(Solving, 3, torch.float64, device), verify="first")
    modules = make(Solving, 3, torch.float64, device)
    x, y = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    for _ in range(3):
        array.zero_grad()
        if split:
            F.mse_loss(array(x), y.expand(3, 4, 5), reduction="sum").backward()
        else:
            array.backward(functools.partial(F.mse_loss, reduction="sum"), x, y)
        for module in modules:
            module.zero_grad()
            F.mse_loss(module(x), y, reduction="sum").backward()
        grads = dict(array.named_parameters())["layer.weight"].grad
        assert grads is not None
        for i, module in enumerate(modules):
            torch.testing.assert_close(grads[i], module.layer.weight.grad, atol=1e-10, rtol=0)


class Listed(nn.Module):
    """Lists of the model's own parameters, as for a penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)
        self.penalised = [self.first.weight]
        self.groups = [([self.second.weight], 0.1), (list(self.first.named_parameters()), 0.2)]

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.tanh(self.first(x))) * (1 + self.penalised[0].pow(2).sum())


@pytest.mark.parametrize("size", [1, 3])
def test_lists_of_parameters_do_not_count_as_changed_when_members_run_alone(size: int) -> None:
    modules = make(Listed, 3, torch.float64, torch.device("cpu"))
    array = hfta.fuse(make(Listed, 3, torch.float64, torch.device("cpu")))
    array.block_size = size
    x = torch.randn(6, 5, dtype=torch.float64)
    for _ in range(4):
        array.zero_grad()
        array(x).pow(2).sum().backward()
        for i, module in enumerate(modules):
            module.zero_grad()
            module(x).pow(2).sum().backward()
            for name, p in module.named_parameters():
                torch.testing.assert_close(array.get_parameter(name).grad[i], p.grad, rtol=1e-10, atol=1e-10)
        with torch.no_grad():
            for p in [*array.parameters(), *(p for module in modules for p in module.parameters())]:
                p -= 1e-3 * p.grad
