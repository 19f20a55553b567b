"""Products of matrices whose blocks lie on a square of processes, for all members at once.

Of a matrix ``[M, rows, columns]`` process (i, j) of a q x q grid holds block ``[M, rows / q, columns / q]``. A product
goes in q rounds, in each of which one block goes along each row of the grid, one along each column, or a partial sum
is collected. No process ever holds more than a few blocks.

Source: Xu et al. 2021 (Optimus, arXiv 2104.05343), algorithms 1 to 3; SUMMA is of van de Geijn and Watts, 1997.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.ranks import Ranks, of_torch


class Grid:
    """A square of ranks; rank r is at row ``r // q`` and column ``r % q``.

    Args:
        ranks: all of them.
        in_row, in_column: those in the own row, and in the own column.
    """

    def __init__(self, ranks: Ranks, in_row: Ranks, in_column: Ranks) -> None:
        self.ranks, self.in_row, self.in_column = ranks, in_row, in_column
        self.q, self.row, self.column = in_row.size, in_column.rank, in_row.rank

    @classmethod
    def of_torch(cls, device: torch.device) -> Grid:
        """Of torch's default process group. Every process makes it, and all in the same order as other groups.

        Raises:
            DistributedError: there is no process group, or the number of its processes is no square.
        """
        ranks = of_torch(None, device)
        q = side_of(ranks.size)
        rows = [dist.new_group([i * q + j for j in range(q)]) for i in range(q)]
        columns = [dist.new_group([i * q + j for i in range(q)]) for j in range(q)]
        row, column = divmod(ranks.rank, q)
        return cls(ranks, Ranks(rows[row], device), Ranks(columns[column], device))

    def from_column(self, block: Tensor, column: int) -> Tensor:
        """The block of the process in this column of the own row."""
        return _from(self.in_row, block, column)

    def from_row(self, block: Tensor, row: int) -> Tensor:
        """The block of the process in this row of the own column."""
        return _from(self.in_column, block, row)


def side_of(count: int) -> int:
    """The side of a square of so many.

    Raises:
        DistributedError: they make none.
    """
    if math.isqrt(count) ** 2 != count:
        raise DistributedError("devices that make no square", where="devices", got=count, accepted="4, 9, 16, ...")
    return math.isqrt(count)


def _from(ranks: Ranks, block: Tensor, source: int) -> Tensor:
    here = ranks.rank == source
    given = block.detach().contiguous() if here else torch.empty_like(block, memory_format=torch.contiguous_format)
    ranks.broadcast_(given, source)
    return given


def product(grid: Grid, a: Float[Tensor, "M r k"], b: Float[Tensor, "M k c"]) -> Float[Tensor, "M r c"]:
    """AB: in round l, block l of each row of A and of each column of B."""
    found = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for turn in range(grid.q):
        found.baddbmm_(grid.from_column(a, turn), grid.from_row(b, turn))
    return found


def product_with_transposed(grid: Grid, a: Float[Tensor, "M r k"], b: Float[Tensor, "M c k"]) -> Float[Tensor, "M r c"]:
    """AB': in round l, block l of each column of B; the sum along a row goes to column l."""
    found = torch.empty(0)
    for turn in range(grid.q):
        part = a @ grid.from_row(b, turn).mT
        grid.in_row.sum_to_(part, turn)
        found = part if turn == grid.column else found
    return found


def transposed_product(grid: Grid, a: Float[Tensor, "M k r"], b: Float[Tensor, "M k c"]) -> Float[Tensor, "M r c"]:
    """A'B: in round l, block l of each row of A; the sum along a column goes to row l."""
    found = torch.empty(0)
    for turn in range(grid.q):
        part = grid.from_column(a, turn).mT @ b
        grid.in_column.sum_to_(part, turn)
        found = part if turn == grid.row else found
    return found


class Product(torch.autograd.Function):
    """AB with its gradients, dA = dC B' and dB = A' dC."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, grid: Grid) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.grid = grid
        return product(grid, a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), (grad,) = ctx.saved_tensors, grads
        return product_with_transposed(ctx.grid, grad, b), transposed_product(ctx.grid, a, grad), None


class Lookup(torch.autograd.Function):
    """Rows of a table ``[M, V, D]`` in blocks, for the tokens of the own row of the grid."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, grid: Grid) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.grid, ctx.shape = grid, table.shape
        found = table.new_zeros(table.shape[0], len(tokens), table.shape[2])
        for turn in range(grid.q):
            here, at = _within(tokens, turn, table.shape[1])
            found[:, here] = grid.from_row(table, turn)[:, at]
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,), (grad,), grid = ctx.saved_tensors, grads, ctx.grid
        found = torch.empty(0)
        for turn in range(grid.q):
            here, at = _within(tokens, turn, ctx.shape[1])
            part = grad.new_zeros(ctx.shape).index_add_(1, at, grad[:, here])
            grid.in_column.sum_to_(part, turn)
            found = part if turn == grid.row else found
        return found, None, None


class Shared(torch.autograd.Function):
    """What all processes of a column hold alike; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.grid.in_column.total(grads[0]), None


class RowSum(torch.autograd.Function):
    """The sum over the processes of a row of the grid.

    Args:
        alike: whether all of them go on alike from it, up to the loss; then each has the whole gradient.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, grid: Grid, alike: bool) -> Tensor:
        ctx.grid, ctx.alike = grid, alike
        return grid.in_row.total(part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] if ctx.alike else ctx.grid.in_row.total(grads[0]), None, None


def _within(tokens: Tensor, turn: int, rows: int) -> tuple[Tensor, Tensor]:
    """Which tokens have their row in a block of so many rows, and at which place."""
    at = tokens - turn * rows
    here = ((at >= 0) & (at < rows)).nonzero().flatten()
    return here, at[here]
