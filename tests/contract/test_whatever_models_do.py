"""Models whose forward `vmap` cannot run, or that one module cannot run for many members: equal to the modules
alone."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hfta_nb as hfta
from hfta_nb.engine.members.tree import flatten
from tests.contract.serial import largest, loss_of, make, target_for

SEEDS = [101, 102, 103]


class Routed(nn.Module):
    """Mixture of experts: every sample goes to one of three, and an expert without samples is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(5, 3)
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            if len(rows):
                out[rows] = expert(x[rows]) * weight[rows].unsqueeze(-1)
        return out


class Between(nn.Module):
    """A submodule within layers that fuse."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, 5), inner, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(torch.tanh(self.first(x))))


class Branching(nn.Module):
    """Goes a way that depends on its numbers, and counts in a buffer how often; drops out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        out = F.dropout(self.linear(x), 0.3, self.training)
        if out.sum().item() > 0:
            self.count += 1
            out = out * 2
        return out


class Skipping(nn.Module):
    """Leaves layers out at random, each member others; a layer that was left out has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or torch.rand(()).item() < 0.5:
                x = x + torch.tanh(layer(x))
        return x


class Hooking(nn.Module):
    """Installs hooks on its parts at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.branching = nn.Linear(5, 5), Branching()
        self.installed = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.installed:
            self.linear.register_forward_hook(lambda module, args, out: out * 2)
            self.installed = True
        return self.branching(self.linear(x))


class Agreeing(nn.Module):
    """Reads values on which all members agree."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if bool(torch.isfinite(x).all()):
            return x * (1 + 1 / float(self.calls))
        return x


class WritesInput(nn.Module):
    """Writes into its input, a different value in every member."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x += self.linear.bias
        x.mul_(2)
        return self.linear(x)


class Recurrence(nn.Module):
    """Fills a tensor that it made empty, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 3, 5, dtype=x.dtype, device=x.device)
        h = x
        for t in range(3):
            h = torch.tanh(self.linear(h))
            out[:, t] = h
        return out.sum(1)


class Square(torch.autograd.Function):
    """Written in the old way, without a rule for `vmap`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grads[0]


class OwnFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(x)


class Histogram(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.histc(x.detach(), 5, -1, 1) / 6


class OwnVmap(nn.Module):
    """Uses `vmap` itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda v: torch.tanh(self.linear(v)))(x)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class Remembering(nn.Module):
    """Keeps a hidden state and a count as plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.hidden = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.linear(x if self.hidden is None else x + self.hidden))
        self.hidden, self.calls = h.detach(), self.calls + 1
        return h / self.calls


class Asking(nn.Module):
    """Looks whether a gradient is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return out * 3 if out.requires_grad else out


def _parametrised(function: Any) -> Any:
    return lambda: function(nn.Linear(5, 5))


ROWS: dict[str, tuple[Any, str]] = {
    "experts chosen by the data": (lambda: Between(Routed()), "submodule inner"),
    "branches on numbers": (lambda: Between(Branching()), "submodule inner"),
    "layers left out at random": (lambda: Between(Skipping()), "submodule inner"),
    "hooks installed late": (lambda: Between(Hooking()), "submodule inner.branching"),
    "reads what all agree on": (lambda: Between(Agreeing()), ""),
    "writes into its input": (WritesInput, "members get copies"),
    "fills an empty tensor": (lambda: Between(Recurrence()), "members get copies"),
    "function without a rule": (lambda: Between(OwnFunction()), "submodule inner"),
    "function that vmap lacks": (lambda: Between(Histogram()), "member by member, as vmap can't run it"),
    "vmap of its own": (lambda: Between(OwnVmap()), ""),
    "attributes": (lambda: Between(Remembering()), ""),
    "asks for requires_grad": (lambda: Between(Asking()), ""),
    "checkpointed": (lambda: Between(Checkpointed()), "one member at a time"),
    "weight norm": (_parametrised(torch.nn.utils.parametrizations.weight_norm), ""),
    "spectral norm": (_parametrised(torch.nn.utils.parametrizations.spectral_norm), ""),
    "orthogonal": (_parametrised(torch.nn.utils.parametrizations.orthogonal), ""),
}


@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("name", ROWS)
def test_as_alone(name: str, block: int, device: torch.device) -> None:
    build, how = ROWS[name]
    modules = make(build, 3, torch.float64, device)
    x = torch.randn(6, 5, dtype=torch.float64, device=device)
    y = target_for(make(build, 1, torch.float64, device)[0], x.clone())
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    optimizer = hfta.optim.SGD(array, lr=[0.1, 0.05, 0.2], momentum=0.9, weight_decay=0.1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(array.backward(loss_of, x.clone(), y))
        optimizer.step()
    if block == 3:
        shown = array.explain().to_string()
        assert how in shown or (name == "checkpointed" and device.type == "cuda")  # `vmap` runs it there
        assert how or not (array.notes or array.settings.paths)
    for i, module in enumerate(modules):
        optimizer = torch.optim.SGD(module.parameters(), lr=[0.1, 0.05, 0.2][i], momentum=0.9, weight_decay=0.1)
        torch.manual_seed(SEEDS[i])
        for step in range(8):
            optimizer.zero_grad()
            loss = loss_of(module(x.clone()), y)
            loss.backward()
            optimizer.step()
            assert losses[step][i].item() == pytest.approx(loss.item(), abs=1e-10)
    assert largest(array, modules) <= 1e-10


def test_attributes_are_each_member_s_own() -> None:
    modules = make(lambda: Between(Remembering()), 3, torch.float64, torch.device("cpu"))
    array = hfta.fuse(modules, SEEDS)
    array.block_size = 2
    x = torch.randn(6, 5, dtype=torch.float64)
    for _ in range(2):
        array(x)
        for m in modules:
            m(x)
    array.copy_member(0, 2)
    for back, module in zip((array[0], array[1], array[2]), (modules[0], modules[1], modules[0]), strict=True):
        assert back.inner.calls == 2
        torch.testing.assert_close(back.inner.hidden, module.inner.hidden, atol=1e-12, rtol=0)
    one = array.select([1])
    torch.testing.assert_close(one(x)[0], modules[1](x), atol=1e-12, rtol=0)
    assert array[1].inner.calls == 2


@dataclasses.dataclass
class Output:
    loss: Tensor
    parts: tuple[Tensor, ...]
    name: str = "out"


class Named(OrderedDict):
    """A dict as nobody registered it."""


class Plain:
    def __init__(self, value: Tensor) -> None:
        self.value, self.note = value, "plain"


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("block", [3, 1])
def test_inputs_and_outputs_of_every_make(block: int) -> None:
    class Talkative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, batch: dict[str, Any], *, shift: Tensor | None = None, times: Output | None = None) -> Any:
            out = self.linear(batch["x"])
            out = out if shift is None else out + shift
            out = out if times is None else out * times.loss
            return Output(out.mean(), (out, out * 2)), Named(a=out, b=[out, None, 3]), Plain(out), Pair(out, "b")

    modules = make(Talkative, 3, torch.float64, torch.device("cpu"))
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    x, shift = torch.randn(6, 5, dtype=torch.float64), torch.randn(3, 6, 3, dtype=torch.float64)
    times = Output(hfta.per_member(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)), ())
    result = array({"x": x}, shift=hfta.per_member(shift), times=times)
    assert isinstance(result[0], Output)
    assert result[0].name == "out"
    assert type(result[1]) is Named
    assert result[1]["b"][1:] == [None, 3]
    assert type(result[2]) is Plain
    assert type(result[3]) is Pair
    for i, module in enumerate(modules):
        own = dataclasses.replace(times, loss=times.loss.value[i])
        expected = module({"x": x}, shift=shift[i], times=own)
        for a, b in zip(flatten(result)[0], flatten(expected)[0], strict=True):
            if isinstance(b, Tensor):
                torch.testing.assert_close(a[i], b, atol=1e-12, rtol=0)
