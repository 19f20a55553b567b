"""Models written by hand with habits that make fusion hard: state outside of modules, hooks, closures, copies."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from benchmarks.unseen.models import add, drawn


class StateInDict(nn.Module):
    """Keeps hidden states in a dict of tensors, by the sign of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last, self.hidden = nn.GRUCell(4, 8), nn.Linear(8, 2), {"a": None, "b": torch.zeros(1, 8)}

    def forward(self, x: Tensor) -> Any:
        before = self.hidden["a"]
        after = self.cell(x, self.hidden["b"].to(x).expand(len(x), 8) if before is None else before)
        self.hidden["a"] = after.detach()
        self.hidden["b"] = 0.5 * self.hidden["b"].to(x) + after.detach().mean(0, keepdim=True)
        return self.last(after)


class LazyParameter(nn.Module):
    """Makes a layer when it sees its first input, from the numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(4, 6), None

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        if self.scale is None:
            self.scale = nn.Parameter(1 / x.detach().std(0))
        return x * self.scale


class Hooked(nn.Module):
    """Pre-hooks that change inputs, hooks that change outputs, hooks that scale gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.seen: list[Tensor] = []
        self.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        self.b.register_forward_hook(lambda m, args, out: out + args[0])
        self.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
        self.c.register_full_backward_pre_hook(lambda m, go: (go[0].clamp(-0.01, 0.01),))
        self.c.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.seen.append(out.detach().mean())

    def forward(self, x: Tensor) -> Any:
        out = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return out + sum(self.seen)


class GradientHook(nn.Module):
    """Hooks on activations and on parameters: clips by the norm, and keeps the norm for the next forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("norm", torch.ones(()))

    def keep(self, grad: Tensor) -> Tensor:
        norm = grad.norm()
        self.norm.copy_(norm.detach())
        return grad / norm.clamp(min=0.01)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(self.keep)
        return self.last(hidden) * self.norm.clone()


class Checkpointed(nn.Module):
    """Dropout under checkpoints of both kinds, in nested ones as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)

    def pair(self, x: Tensor) -> Any:
        return checkpoint(self.layers[2], self.layers[1](x), use_reentrant=False)

    def forward(self, x: Tensor) -> Any:
        x = checkpoint(self.layers[0], x.requires_grad_() if x.is_leaf else x, use_reentrant=True)
        return self.norm(checkpoint(self.pair, x, use_reentrant=False))


class _Scaled(torch.autograd.Function):
    """Saves a reference to a module, and asks it in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        module.calls += 1
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.module.slope.detach() * (x.abs() < 2), None


class SavedModule(nn.Module):
    """A function of its own whose backward reads a parameter and a counter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.slope = nn.Linear(4, 8), nn.Linear(8, 2), nn.Parameter(torch.rand(()) + 0.5)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        return self.last(_Scaled.apply(self.first(x), self)) * (self.slope + self.calls)


class _Skew(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.triu(1) - x.triu(1).mT

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu(1)


class Parametrized(nn.Module):
    """Parametrizations one upon the other, cached over two uses, spectral norm and weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.skew, self.orthogonal = nn.Linear(4, 4), parametrizations.orthogonal(nn.Linear(4, 4))
        parametrize.register_parametrization(self.skew, "weight", _Skew())
        self.spectral = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Any:
        with parametrize.cached():
            for _ in range(2):
                x = torch.tanh(self.spectral(self.orthogonal(x + self.skew(x))))
        return self.norm(x.mT[None]).sum(-1)


class TiedInForward(nn.Module):
    """Ties weights by assignment in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor) -> Any:
        self.decode.weight = self.encode.weight
        return torch.tanh(self.encode(x)) @ self.decode.weight


class MeanTeacher(nn.Module):
    """Moves a copy of itself in the forward, and is drawn to it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())

    @torch.no_grad()
    def move(self) -> None:
        for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            own.data = own.data.lerp(other.data + 0.01 * torch.randn_like(other), 0.3)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.move()
        return self.student(x) - self.teacher(x)


class Memory(nn.Module):
    """Appends to a buffer in place, at a place that a counter says, and attends to what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 4)
        self.register_buffer("rows", torch.zeros(8, 4))
        self.at = 0

    def forward(self, x: Tensor) -> Any:
        keys = self.key(x)
        self.rows[self.at : self.at + 3] = keys.detach()[:3]
        self.at = (self.at + 3) % 6
        return (keys @ self.rows.clone().T).softmax(-1) @ self.rows.clone()


class Compiled(nn.Module):
    """A submodule under torch.compile, with the back end that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)), backend="eager")
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.inner(x)))


class InClosure(nn.Module):
    """Layers in a closure, a partial and a bound method, besides the registered ones."""

    def __init__(self) -> None:
        super().__init__()
        layer, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.layer, self.norm = layer, norm
        self.call: Callable[[Tensor], Any] = lambda x: norm(layer(x))
        self.partly = functools.partial(F.linear, weight=layer.weight)
        self.bound = layer.forward

    def forward(self, x: Tensor) -> Any:
        return self.call(x) + self.partly(x) + self.bound(x)


class HiddenInClosure(nn.Module):
    """A layer with dropout that no attribute of the model holds, only a function."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(4, 4)
        self.last = nn.Linear(4, 2)
        self.call = lambda x: torch.tanh(x @ table.to(x))

    def forward(self, x: Tensor) -> Any:
        return self.last(self.call(x))


class RandomElsewhere(nn.Module):
    """Draws from NumPy, from Python's generator and from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.numpy = np.random.default_rng(int(torch.randint(100, ())))
        self.python = random.Random(int(torch.randint(100, ())))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            x = x + torch.from_numpy(np.random.randn(*x.shape)) * random.random()
            x = x * float(self.numpy.uniform(0.5, 1.5)) + self.python.choice([0.0, 0.1, 0.2])
        return self.last(torch.tanh(self.linear(x)))


class CachedByShape(nn.Module):
    """A cache by shape, of what a parameter gave when the shape was new."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.cache = nn.Parameter(torch.randn(4)), {}

    def forward(self, x: Tensor) -> Any:
        for rows in (len(x), 3, len(x)):
            if rows not in self.cache:
                self.cache[rows] = torch.arange(rows, dtype=x.dtype)[:, None] * self.weight.detach()
        return x * self.weight + self.cache[len(x)] + self.cache[3].sum(0)


# fmt: off
for _kind in (StateInDict, LazyParameter, Hooked, GradientHook, Checkpointed, SavedModule, Parametrized, TiedInForward,
              MeanTeacher, Memory, Compiled, InClosure, HiddenInClosure, RandomElsewhere, CachedByShape):
    add("torch", _kind.__name__, _kind, drawn((6, 4)))
# fmt: on
