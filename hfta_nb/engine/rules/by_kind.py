"""Activations of which each member has one of several kinds, which may change after a call was recorded.

One operator computes each member's rows with its own kind. It reads the kinds when it runs, on the host: only on a CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.kernels.native.binding import Binding

Kernels = Mapping[str, Callable[..., Any]]

_aten = torch.ops.aten

_OUT: Kernels = {
    "relu": lambda x, out: torch.clamp_min(x, 0, out=out),
    "gelu": lambda x, out: _aten.gelu.out(x, out=out),
    "tanh": lambda x, out: torch.tanh(x, out=out),
    "silu": lambda x, out: _aten.silu.out(x, out=out),
}
"""By name, the kernel that computes rows into given memory."""

_BACKWARD: Kernels = {
    "relu": lambda g, x, out: _aten.threshold_backward.grad_input(g, x, 0, grad_input=out),
    "gelu": lambda g, x, out: _aten.gelu_backward.grad_input(g, x, grad_input=out),
    "tanh": lambda g, x, out: _aten.tanh_backward.grad_input(g, torch.tanh(x), grad_input=out),
    "silu": lambda g, x, out: _aten.silu_backward.grad_input(g, x, grad_input=out),
}

_PREPARED = ("gelu",)
"""Kernels of oneDNN, which prepares each call anew: that takes as long as some thousand entries."""

_WORTH_A_CALL = 12288
"""Entries of other members that such a kernel computes in vain rather than being called once more; measured."""


def name_of(module: nn.Module) -> str:
    """The name of an activation that `by_kind` computes; empty for any other module."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return ""
    if type(module) is nn.ReLU:
        return "" if module.inplace else "relu"
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else ""
    if type(module) is nn.SiLU:
        return "" if module.inplace else "silu"
    return "tanh" if type(module) is nn.Tanh else ""


def by_kind(x: Tensor, chosen: Sequence[Tensor], kinds: str) -> Tensor:
    """Each member's activation of its rows.

    Args:
        x: ``[M, ...]``, on the CPU.
        chosen: by kind, which members have it, bool ``[M]``; each member has one.
        kinds: their names, separated by commas.
    """
    found: Tensor = _ByKind.apply(x, kinds, *chosen)  # type: ignore[no-untyped-call]
    return found


class _ByKind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kinds: str, *chosen: Tensor) -> Any:
        ctx.save_for_backward(x, *chosen)
        ctx.kinds = kinds
        return torch.ops.hfta_nb.by_kind(x, list(chosen), kinds)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *chosen = ctx.saved_tensors
        grad = torch.ops.hfta_nb.by_kind_backward(grads[0], x, chosen, ctx.kinds)
        return grad, None, *[None] * len(chosen)


def names_of(chosen: Sequence[Tensor], kinds: Sequence[str]) -> list[str]:
    """By member, the name of its kind."""
    names = [kinds[-1]] * len(chosen[0])
    for name, own in zip(kinds[:-1], chosen, strict=False):
        for row, yes in enumerate(own.tolist()):
            if yes:
                names[row] = name
    return names


class _Bound:
    """A call with its tensors; neighbours of one kind are computed together, and so are members nearby where
    a call costs more than their rows.

    Args:
        kernels: by name, what takes the rows of `given` and of `out`.
        given: tensors ``[M, ...]``.
        out: memory for the result, beside `given`: some rows are written twice.
        chosen, kinds: see `by_kind`.
    """

    def __init__(
        self, kernels: Kernels, given: Sequence[Tensor], out: Tensor, chosen: Sequence[Tensor], kinds: str
    ) -> None:
        self.kernels, self.given, self.out, self.chosen, self.kinds = kernels, given, out, chosen, kinds.split(",")
        self._names: list[str] = []
        self._calls: list[Callable[[], Any]] = []

    def __call__(self) -> None:
        names = names_of(self.chosen, self.kinds)
        if names != self._names:
            self._names, tensors = names, (*self.given, self.out)
            gap = _WORTH_A_CALL // max(1, self.out[0].numel())
            self._calls = [partial(self.kernels[n], *(t[rows] for t in tensors)) for n, rows in _runs(names, gap)]
        for call in self._calls:
            call()


def _runs(names: Sequence[str], gap: int) -> list[tuple[str, slice]]:
    """Kernels and the members that each computes, in order; a later one overwrites what an earlier one gave.

    Args:
        names: by member, its kind.
        gap: members of other kinds that a call of `_PREPARED` may take along.
    """
    found: list[tuple[str, slice]] = []
    start = 0
    for name, rows in itertools.groupby(names):
        stop = start + len(list(rows))
        before = next((i for i in reversed(range(len(found))) if found[i][0] == name), None)
        if name in _PREPARED and before is not None and start - found[before][1].stop <= gap:
            found[before] = (name, slice(found[before][1].start, stop))
        else:
            found.append((name, slice(start, stop)))
        start = stop
    return sorted(found, key=lambda run: run[0] not in _PREPARED)


def _bind_forward(args: Sequence[Any], buffers: Mapping[str, Any]) -> Callable[[], None]:
    x, chosen, kinds = args
    return _Bound(_OUT, (x,), buffers["out"], chosen, kinds)


def _bind_backward(args: Sequence[Any], buffers: Mapping[str, Any]) -> Callable[[], None]:
    grad, x, chosen, kinds = args
    return _Bound(_BACKWARD, (grad, x), buffers["out"], chosen, kinds)


def _forward(x: Tensor, chosen: Sequence[Tensor], kinds: str) -> Tensor:
    out = torch.empty_like(x)
    _Bound(_OUT, (x,), out, chosen, kinds)()
    return out


def _backward(grad: Tensor, x: Tensor, chosen: Sequence[Tensor], kinds: str) -> Tensor:
    out = torch.empty_like(x)
    _Bound(_BACKWARD, (grad, x), out, chosen, kinds)()
    return out


def _forward_shape(x: Tensor, chosen: Sequence[Tensor], kinds: str) -> Tensor:
    """The result without its numbers, for whoever compiles a graph with the operator in it."""
    return torch.empty_like(x)


def _backward_shape(grad: Tensor, x: Tensor, chosen: Sequence[Tensor], kinds: str) -> Tensor:
    return torch.empty_like(x)


_LIBRARY = torch.library.Library("hfta_nb", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "by_kind(Tensor x, Tensor[] chosen, str kinds) -> Tensor": (_forward, _forward_shape),
    "by_kind_backward(Tensor grad, Tensor x, Tensor[] chosen, str kinds) -> Tensor": (_backward, _backward_shape),
}
for _schema, (_function, _shape) in _SCHEMAS.items():
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_name, _function, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"hfta_nb::{_name}", _shape, lib=_LIBRARY)

BINDINGS = {
    torch.ops.hfta_nb.by_kind.default: Binding(_bind_forward),
    torch.ops.hfta_nb.by_kind_backward.default: Binding(_bind_backward),
}
"""By operator, its kernel with memory for the result."""
