"""Modules composed by hypothesis of parts that change their own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.contract.states.modules import ByGrad

WIDTH = 4


class _Cube(torch.autograd.Function):
    """Without a rule for `vmap`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return ctx.saved_tensors[0] ** 2 * grads[0]  # type: ignore[no-any-return]


class Part(nn.Module):
    """One thing of `KINDS`, with state of its own.

    Args:
        kind: of `KINDS`.
        inner: what it wraps, if it wraps anything.
    """

    def __init__(self, kind: str, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.kind, self.inner = kind, inner if inner is not None else nn.Identity()
        self.weight = nn.Parameter(torch.randn(WIDTH) / 4 + 1)
        self.count, self.hidden, self.seen, self.totals = 0, None, list[Tensor](), {"calls": 0.0}
        self.mean = torch.zeros(WIDTH, dtype=torch.float64)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("late", None)
        self.register_buffer("memory", torch.zeros(0))
        self.stream = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        return KINDS[self.kind](self, x)


def _in_place(part: Part, x: Tensor) -> Tensor:
    h = x * part.weight
    h += 1
    h[:, 0] *= 0.5
    return h.tanh_()


def _count(part: Part, x: Tensor) -> Tensor:
    part.count += 1
    return x * part.weight / part.count


def _hidden(part: Part, x: Tensor) -> Tensor:
    h = torch.tanh(x * part.weight + (0 if part.hidden is None else part.hidden))
    part.hidden = h.detach()
    return h


def _list(part: Part, x: Tensor) -> Tensor:
    part.seen.append((x * part.weight).detach().mean())
    part.totals["calls"] += 0.5
    return x + part.seen[0] * part.totals["calls"]


def _data(part: Part, x: Tensor) -> Tensor:
    if part.count == 0:
        part.weight.data = 1 / (x.detach().abs().mean(0) + 1)
        part.count = 1
    return x * part.weight


def _clamped(part: Part, x: Tensor) -> Tensor:
    part.weight.data.clamp_(-1, 1)
    return x * part.weight


def _plain_mean(part: Part, x: Tensor) -> Tensor:
    part.mean.mul_(0.5).add_(x.detach().mean(0))
    return x - part.mean * part.weight


def _buffer(part: Part, x: Tensor) -> Tensor:
    part.average = 0.5 * part.average + 0.5 * (x * part.weight).detach().mean(0)
    return x - part.average


def _late(part: Part, x: Tensor) -> Tensor:
    part.late = (x * part.weight).detach().mean(0) if part.late is None else part.late * 0.9
    return x + part.late


def _growing(part: Part, x: Tensor) -> Tensor:
    if part.memory.numel() == 0:
        part.memory = torch.zeros_like(x)
    part.memory = 0.5 * part.memory + (x * part.weight).detach()
    return x + part.memory


def _branch(part: Part, x: Tensor) -> Tensor:
    h = x * part.weight
    return h * 2 if h.detach().sum().item() > 0 else h - 1


def _own_stream(part: Part, x: Tensor) -> Tensor:
    return x * part.weight + torch.randn(WIDTH, generator=part.stream, dtype=x.dtype) / 8


KINDS: dict[str, Callable[[Part, Tensor], Tensor]] = {
    "linear": lambda part, x: F.linear(x, torch.outer(part.weight, part.weight)),
    "in place": _in_place,
    "counter": _count,
    "hidden state": _hidden,
    "containers": _list,
    "data at first": _data,
    "data clamped": _clamped,
    "plain tensor": _plain_mean,
    "buffer": _buffer,
    "None at first": _late,
    "growing": _growing,
    "branch": _branch,
    "stream": _own_stream,
    "dropout": lambda part, x: F.dropout(x * part.weight, 0.3, part.training),
    "own function": lambda part, x: _Cube.apply(torch.tanh(x * part.weight)),
    "called again": lambda part, x: ByGrad.apply(part.inner, x * part.weight, *part.inner.parameters()),
    "checkpoint": lambda part, x: checkpoint(part.inner, x * part.weight, use_reentrant=False),  # type: ignore[dict-item]
    "reentrant": lambda part, x: checkpoint(part.inner, x * part.weight, use_reentrant=True),  # type: ignore[dict-item]
    "residual": lambda part, x: x + torch.tanh(part.inner(x) * part.weight),
}
WRAPPERS = ("called again", "checkpoint", "reentrant", "residual")


@st.composite
def plans(draw: Any) -> list[tuple[str, str | None]]:
    """Kinds of parts in order, each with what it wraps."""
    found = []
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4)):
        within = sorted(KINDS.keys() - {*WRAPPERS}) if kind == "residual" else ["linear", "own function"]
        found.append((kind, draw(st.sampled_from(within)) if kind in WRAPPERS else None))
    return found


def build(plan: list[tuple[str, str | None]]) -> nn.Module:
    """The module of a plan."""
    parts = [Part(kind, None if within is None else Part(within)) for kind, within in plan]
    return nn.Sequential(nn.Linear(5, WIDTH), *parts, nn.Linear(WIDTH, 3))
