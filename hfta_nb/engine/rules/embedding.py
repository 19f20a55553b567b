"""Embedding tables of all members, in which each member looks up its own rows where they are.

`vmap`'s own rule gives wrong gradients (torch 2.13): with a padding index, and indices that differ by member, only the
first member's padding row is excluded from learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from hfta_nb.engine.members.untraced import untraced
from hfta_nb.engine.rules.member_by_member import torch_kernel_per_member
from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")

_BAG_NAMES = (
    *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse"),
    *("per_sample_weights", "include_last_offset", "padding_idx"),
)

_LARGE = 1 << 20
"""Gradients of at least so many bytes are computed by `_scattered`, whose calls are one per member."""


@dataclass(frozen=True)
class Learning:
    """How the looked-up rows of a table learn.

    Attributes:
        padding: number of the row that does not learn.
        by_frequency: divide a row's gradient by how often it is looked up.
        sparse: the gradient is a sparse tensor.
    """

    padding: int | None = None
    by_frequency: bool = False
    sparse: bool = False


class _Lookup(torch.autograd.Function):
    """Rows of the tables of all members.

    The tables of an array are parts of its members' rows in memory (`Arena`), with other parameters in between. One
    table of all of them would be a copy. Instead, rows are looked up in the memory of the tables and of what lies
    between: it is seen as one table, whose rows begin at each common divisor of the distances of rows and members, and
    overlap.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Float[Tensor, "M V D"], index: Int[Tensor, " M *N"], learning: Learning
    ) -> Float[Tensor, " M *N D"]:
        ctx.save_for_backward(index)
        ctx.rows, ctx.learning = table.shape[1], learning
        window, at = _window(table, index)
        return torch.embedding(window, at)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (index,), (grad,) = ctx.saved_tensors, grads
        return _learned(grad, index, ctx.rows, ctx.learning), None, None


class _Bags(torch.autograd.Function):
    """Sums (or means) of rows of the tables of all members, by one `embedding_bag` over all members' bags.

    Args:
        table, index: as for `_Lookup`; the indices of a member are in one axis.
        offsets: where a member's bags begin.
        weights: factors of the looked-up rows, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        table: Float[Tensor, "M V D"],
        index: Int[Tensor, "M K"],
        offsets: Int[Tensor, "M B"],
        weights: Float[Tensor, "M K"] | None,
        mode: str,
        learning: Learning,
    ) -> Float[Tensor, "M B D"]:
        window, at = _window(table, index)
        begins = (offsets + _first(offsets, index.shape[1])).flatten()
        factors = None if weights is None else weights.flatten()
        # The kernel itself: the function of `torch.nn` has a rule, which is this one.
        number = {"sum": 0, "mean": 1}[mode]
        found = torch.embedding_bag(window, at.flatten(), begins, False, number, False, factors)[0]
        ctx.save_for_backward(index, begins, weights)
        ctx.rows, ctx.mode, ctx.learning = table.shape[1], mode, learning
        return found.view(*offsets.shape, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (index, begins, weights), (grad,) = ctx.saved_tensors, grads
        bag = torch.searchsorted(begins, torch.arange(index.numel(), device=index.device), right=True) - 1
        each = grad.flatten(0, 1).index_select(0, bag)
        if weights is not None:
            each = each * weights.reshape(-1, 1)
        elif ctx.mode == "mean":
            sizes = torch.diff(begins, append=begins.new_tensor([index.numel()]))
            each = each / sizes.index_select(0, bag).unsqueeze(1)
        found = _learned(each.view(*index.shape, -1), index, ctx.rows, ctx.learning)
        return found, None, None, None, None, None


def _window(table: Float[Tensor, "M V D"], index: Int[Tensor, " M *N"]) -> tuple[Float[Tensor, "W D"], Tensor]:
    """The memory of all tables as one, and the indices in it; see `_Lookup`."""
    (members, rows, width), (apart, below, beside) = table.shape, table.stride()
    step = math.gcd(apart, below) or 1
    count = ((members - 1) * apart + (rows - 1) * below) // step + 1
    window = table.as_strided((count, width), (step, beside), table.storage_offset())
    at = index if below == step else index * (below // step)
    return window, at + _first(index, apart // step)


def _learned(
    grad: Float[Tensor, " M *N D"], index: Int[Tensor, " M *N"], rows: int, learning: Learning
) -> Float[Tensor, "M V D"]:
    """The gradient of the tables, given that of the looked-up rows."""
    members, padding = len(index), learning.padding
    if learning.sparse:
        return _sparse(grad, index, rows, padding)
    if not learning.by_frequency and _is_scattered(grad, members * rows):
        return _scattered(grad, index, rows, padding)
    at, count, aside = index + _first(index, rows), members * rows, -1
    if padding is not None:  # one more row takes what the padding rows of all members would learn
        at, aside, count = at.masked_fill(index == padding % rows, count), count, count + 1
    found = torch.ops.aten.embedding_dense_backward(grad, at, count, aside, learning.by_frequency)
    learned: Tensor = found[: members * rows].view(members, rows, -1)
    return learned


def _sparse(
    grad: Float[Tensor, " M *N D"], index: Int[Tensor, " M *N"], rows: int, padding: int | None
) -> Float[Tensor, "M V D"]:
    """The gradient as a sparse tensor of the looked-up rows, with members and rows as its sparse axes."""
    shape = (len(index), rows, grad.shape[-1])
    member = torch.arange(len(index), device=index.device).view(-1, *[1] * (index.ndim - 1)).expand_as(index)
    at, values = torch.stack([member.flatten(), index.flatten()]), grad.reshape(-1, grad.shape[-1])
    if padding is not None:
        kept = at[1] != padding % rows
        at, values = at[:, kept], values[kept]
    return torch.sparse_coo_tensor(at, values, shape, check_invariants=False)


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
        sparse = bool(given.get("sparse")) and context.takes_sparse(table)
        learning = Learning(padding, bool(given.get("scale_grad_by_freq")), sparse)
        out: Tensor = _Lookup.apply(table, own, learning)  # type: ignore[no-untyped-call]
        return context.wrapped(out)


def _bags(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_BAG_NAMES, args, kwargs)
    weight, mode, factors = given["weight"], given.get("mode", "mean"), given.get("per_sample_weights")
    with context.outside():  # a tensor wrapped by `vmap` always says that it requires no gradient
        learns = isinstance(factors, Tensor) and context.stacked(factors).requires_grad
    others = ("max_norm", "scale_grad_by_freq", "include_last_offset", "padding_idx")
    apart = learns or mode == "max" or any(given.get(name) not in (None, False) for name in others)
    if apart or not context.batched(weight):
        return torch_kernel_per_member(context, function, args, kwargs)
    context.note(function, "the bags of all members in one call, in the tables where they are")
    with context.outside():
        table, index = context.stacked(weight), context.stacked(given["input"])
        if given.get("offsets") is None:
            bags, size = index.shape[1:]
            offsets = torch.arange(0, bags * size, size, device=index.device).expand(len(index), -1)
        else:
            offsets = context.stacked(given["offsets"])
            _check(offsets, index.shape[1] + 1)
            _check(offsets[:, :1], 1)
        weights = None if factors is None else context.stacked(factors).flatten(1)
        _check(index, table.shape[1])
        learning = Learning(sparse=bool(given.get("sparse")) and context.takes_sparse(table))
        out: Tensor = _Bags.apply(table, index.flatten(1), offsets, weights, mode, learning)  # type: ignore[no-untyped-call]
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


RULES: dict[object, Rule] = {F.embedding: _embedding, F.embedding_bag: _bags}
