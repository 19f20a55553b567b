"""Models written by hand with habits that make fusion hard: ways that data decide, inner gradients, odd values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.unseen.models import add, drawn


@dataclasses.dataclass
class Answer:
    """What the model below returns."""

    mean: Tensor
    spread: Tensor
    parts: list[Tensor]
    name: str = "answer"


class Dataclass(nn.Module):
    """Returns a dataclass with nested parts, and a number that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        mean = self.mean(x)
        return Answer(mean, F.softplus(self.spread(x)), [mean[:1], mean.sum()])


class Views(nn.Module):
    """Views of a parameter that the constructor stored, used beside the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.top, self.low = self.weight[:4], self.weight.detach()[4:]

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight.T + (x @ self.low.to(x)).repeat(1, 2)


class Complex(nn.Module):
    """Complex parameters, a spectrum, and a complex buffer that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.cdouble))
        self.last = nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(5, dtype=torch.cdouble))

    def forward(self, x: Tensor) -> Any:
        spectrum = torch.fft.rfft(x, n=8) * self.filter
        if self.training:
            self.mean.lerp_(spectrum.detach().mean(0), 0.1)
        return self.last(torch.fft.irfft(spectrum + self.mean, n=8)), spectrum.abs()


class Sparse(nn.Module):
    """Products with sparse matrices: one fixed, one made of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.values = nn.Linear(4, 4), nn.Parameter(torch.randn(5))
        self.register_buffer("where", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]))
        self.register_buffer("fixed", torch.eye(4).to_sparse())

    def forward(self, x: Tensor) -> Any:
        made = torch.sparse_coo_tensor(self.where, self.values, (4, 4))
        return torch.sparse.mm(made, self.linear(x).T).T + torch.sparse.mm(self.fixed.to(x.dtype), x.T).T


class ByName(nn.Module):
    """Experts in nested dicts of modules, chosen by name from a list that the forward turns."""

    def __init__(self) -> None:
        super().__init__()
        names = ["x", "y", "z"]
        self.groups = nn.ModuleDict({g: nn.ModuleDict({n: nn.Linear(4, 4) for n in names}) for g in ("p", "q")})
        self.order = names

    def forward(self, x: Tensor) -> Any:
        for group in sorted(self.groups):
            x = torch.relu(self.groups[group][self.order[0]](x)) + x
        self.order = self.order[1:] + self.order[:1]
        return x


class EarlyExit(nn.Module):
    """Leaves when it is sure, and so at another layer for each member."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 2)
        self.depth = 0

    def forward(self, x: Tensor) -> Any:
        for self.depth, layer in enumerate(self.layers):  # noqa: B020
            x = torch.tanh(layer(x))
            if x.detach().norm() < 1.8 - 0.1 * self.depth:
                break
        return self.head(x) * (1 + self.depth)


class Halting(nn.Module):
    """Adaptive computation time: each row halts when its probabilities sum to one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.halt = nn.GRUCell(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Any:
        state, total, out, steps = torch.zeros_like(x), x.new_zeros(len(x)), torch.zeros_like(x), 0
        while bool((total < 0.99).any()) and steps < 6:
            state = self.cell(x, state)
            p = torch.where(total < 0.99, torch.sigmoid(self.halt(state)).squeeze(-1), 0.0)
            p = torch.minimum(p, 1 - total)
            out, total, steps = out + p[:, None] * state, total + p, steps + 1
        return out, total


class Swapped(nn.Module):
    """Replaces a layer at run time, when it has been called once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.wide = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if self.calls == 2:
            self.middle = nn.Sequential(self.wide, nn.ReLU())
        return self.middle(self.first(x))


class InnerGradient(nn.Module):
    """An energy, and its gradient by the input as the output; a penalty on the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.energy(x).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -force


class InnerStep(nn.Module):
    """Adapts its weights by one step on the input before it answers, and trains through that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            weights = dict(self.net.named_parameters())
            loss = ((torch.func.functional_call(self.net, weights, (x,)) - x) ** 2).mean()
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        moved = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), grads, strict=True)}
        return torch.func.functional_call(self.net, moved, (x,))


class OwnHook(nn.Module):
    """A hook on a submodule that is a closure over the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.first.register_forward_hook(lambda m, args, out: out * self.scale)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.first(x)))


class Ragged(nn.Module):
    """Keeps the rows that a mask of its outputs selects, as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        kept = hidden[hidden.sum(-1) > 0]
        return self.last(kept).sum(0) + len(kept)


class GlobalState(nn.Module):
    """Counts in an attribute of the class, and reads the count."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.own = 0

    def forward(self, x: Tensor) -> Any:
        self.own, type(self).calls = self.own + 1, type(self).calls + 1
        return self.linear(x) * self.own


class Packed(nn.Module):
    """Packed sequences of lengths that are inputs, and a bidirectional LSTM with projections."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=3), nn.Linear(6, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = self.rnn(packed)
        return self.last(nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]), h, c


class Scheduled(nn.Module):
    """A temperature that falls with each call in training, in a plain attribute and in a NumPy array."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.temperature, self.history = nn.Linear(4, 6), 2.0, np.zeros(3)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.temperature *= 0.8
            self.history[:-1], self.history[-1] = self.history[1:], self.temperature
        return F.gumbel_softmax(self.linear(x), float(self.history.sum() + 0.1), hard=True)


# fmt: off
for _kind in (Dataclass, Views, Complex, Sparse, ByName, EarlyExit, Halting, Swapped, InnerGradient, InnerStep,
              OwnHook, Ragged, GlobalState, Scheduled):
    add("torch", _kind.__name__, _kind, drawn((6, 4)))
add("torch", "Packed", Packed, lambda: (torch.randn(4, 5, 4), torch.tensor([5, 2, 4, 1])))
# fmt: on
