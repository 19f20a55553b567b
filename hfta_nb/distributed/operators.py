"""Exchanges between ranks as operators, which autograd, `vmap` and recorded programs know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.distributed.ranks import known

# An operator is one instruction of a recorded program: what torch's process groups call within is not recorded.
_library = torch.library.Library("hfta_nb", "FRAGMENT")
_library.define("gather_rows(Tensor rows, int dim, int[] sizes, str ranks) -> Tensor")
_library.define("total(Tensor part, str ranks) -> Tensor")


def _gather_rows(rows: Tensor, dim: int, sizes: Sequence[int], ranks: str) -> Tensor:
    group = known(ranks)
    own = rows.movedim(dim, 0)[: sizes[group.rank]]
    padded = own.new_zeros(max(sizes), *own.shape[1:])
    padded[: len(own)] = own
    parts = group.gather(padded)
    return torch.cat([part[:count] for part, count in zip(parts, sizes, strict=True)]).movedim(0, dim).contiguous()


def _total(part: Tensor, ranks: str) -> Tensor:
    whole = part.clone(memory_format=torch.contiguous_format)
    known(ranks).sum_(whole)
    return whole


_library.impl("gather_rows", _gather_rows, "CompositeExplicitAutograd")
_library.impl("total", _total, "CompositeExplicitAutograd")


def total(part: Tensor, ranks: str) -> Tensor:
    """The sum over all ranks; not differentiated."""
    found: Tensor = torch.ops.hfta_nb.total(part, ranks)
    return found


def gather_rows(rows: Tensor, sizes: Sequence[int], ranks: str) -> Tensor:
    """The rows of all ranks along the first axis, in their order; on every rank.

    All ranks compute the same from what they get, so a rank's gradient is its rows of the gradient.
    """
    found: Tensor = _GatherRows.apply(rows, 0, tuple(sizes), ranks)
    return found


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, dim: int, sizes: Sequence[int], ranks: str) -> Tensor:
        found: Tensor = torch.ops.hfta_nb.gather_rows(rows, dim, list(sizes), ranks)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, ctx.dim, ctx.sizes, ctx.ranks = inputs
        ctx.shape = rows.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rank = known(ctx.ranks).rank
        if not ctx.sizes[rank]:  # the row that it has computed does not count
            return grad.new_zeros(ctx.shape), None, None, None
        return grad.narrow(ctx.dim, sum(ctx.sizes[:rank]), ctx.sizes[rank]), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rows: Tensor, dim: int, sizes: Any, ranks: str) -> tuple[Tensor, Any]:
        """One exchange for the members of a block."""
        if in_dims[0] is None:
            return _GatherRows.apply(rows, dim, sizes, ranks), None
        return _GatherRows.apply(rows.movedim(in_dims[0], 0), dim + 1, sizes, ranks), 0
