"""Embedding tables of all members, in which each member looks up its own rows where they are.

`vmap`'s own rule gives wrong gradients (torch 2.13): with a padding index, and indices that differ by member, only the
first member's padding row is excluded from learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from hfta_nb.engine.members.untraced import untraced
from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")

_LARGE = 1 << 20
"""Gradients of at least so many bytes are computed by `_scattered`, whose calls are one per member."""


class _Lookup(torch.autograd.Function):
    """Rows of the tables of all members.

    The tables of an array are parts of its members' rows in memory (`Arena`), with other parameters in between. One
    table of all of them would be a copy. Instead, rows are looked up in the memory of the tables and of what lies
    between: it is seen as one table, whose rows begin at each common divisor of the distances of rows and members, and
    overlap.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Float[Tensor, "M V D"], index: Int[Tensor, " M *N"], padding: int | None, by_frequency: bool
    ) -> Float[Tensor, " M *N D"]:
        ctx.save_for_backward(index)
        ctx.rows, ctx.padding, ctx.by_frequency = table.shape[1], padding, by_frequency
        (members, rows, width), (apart, below, beside) = table.shape, table.stride()
        step = math.gcd(apart, below) or 1
        count = ((members - 1) * apart + (rows - 1) * below) // step + 1
        window = table.as_strided((count, width), (step, beside), table.storage_offset())
        at = index if below == step else index * (below // step)
        return torch.embedding(window, at + _first(index, apart // step))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (index,), (grad,) = ctx.saved_tensors, grads
        members, rows = len(index), ctx.rows
        if not ctx.by_frequency and _is_scattered(grad, members * rows):
            return _scattered(grad, index, rows, ctx.padding), None, None, None
        at, count, aside = index + _first(index, rows), members * rows, -1
        if ctx.padding is not None:  # one more row takes what the padding rows of all members would learn
            at, aside, count = at.masked_fill(index == ctx.padding % rows, count), count, count + 1
        found = torch.ops.aten.embedding_dense_backward(grad, at, count, aside, ctx.by_frequency)
        return found[: members * rows].view(members, rows, -1), None, None, None


def _is_scattered(grad: Tensor, rows: int) -> bool:
    """True if members' gradients are added into one tensor of the tables' shape, which a replayed step has where
    gradients are kept: large tables are then written once. In 16 bits torch's two kernels round otherwise."""
    large = rows * grad.shape[-1] * grad.element_size() >= _LARGE
    return large and grad.device.type == "cpu" and grad.dtype in (torch.float32, torch.float64)


def _scattered(
    grad: Float[Tensor, " M *N D"], index: Int[Tensor, " M *N"], rows: int, padding: int | None
) -> Float[Tensor, "M V D"]:
    """The gradients of tables of so many rows; each row is a sum in the order of the indices, as torch's is."""
    members, width = len(index), grad.shape[-1]
    if padding is not None:
        grad = grad.masked_fill((index == padding % rows).unsqueeze(-1), 0)
    grad, index = grad.reshape(members, -1, width), index.reshape(members, -1)
    found = grad.new_zeros(members, rows, width)
    for member in range(members):
        found[member].index_add_(0, index[member], grad[member])
    return found


def _first(index: Tensor, rows: int) -> Tensor:
    """By member, the number of its first row, with the axes of `index`."""
    return torch.arange(len(index), device=index.device).view(-1, *[1] * (index.ndim - 1)) * rows


def _embedding(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    index, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    if not context.batched(weight) and not (context.batched(index) and padding is not None):
        return function(*args, **kwargs)
    context.note(function, "in the tables of all members, without a copy")
    with context.outside():
        table, own = context.stacked(weight), context.stacked(index)
        _check(own, table.shape[1])
        if given.get("max_norm") is not None:
            _shrink(table, own, float(given["max_norm"]), float(given.get("norm_type", 2.0)))
        by_frequency = bool(given.get("scale_grad_by_freq"))
        out: Tensor = _Lookup.apply(table, own, padding, by_frequency)  # type: ignore[no-untyped-call]
        return context.wrapped(out)


@torch.no_grad()
def _shrink(table: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Shorten rows that are looked up and longer than `max_norm`, in place."""
    for member, looked_up in enumerate(index):
        # `.data`: as in the plain module, autograd does not record this.
        torch.embedding_renorm_(table.data.select(0, member), looked_up.contiguous(), max_norm, norm_type)


def _check(index: Tensor, rows: int) -> None:
    """Raise an error for an index beyond the table, as torch does; it would select another member's row."""
    inside = ((index >= 0) & (index < rows)).all()
    with untraced():  # a replayed step runs the assertion below instead
        if index.device.type == "cpu" and not inside:
            raise IndexError("index out of range in self")
    torch._assert_async(inside)


RULES: dict[object, Rule] = {F.embedding: _embedding}
