"""Embedding tables of an array's members that are distributed over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray, fuse
from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.ranks import Ranks, of_torch
from hfta_nb.workers.distributed.table_placement import Piece, Placement, part_of, tables_of


class ShardedTables:
    """The embedding tables of M members over several processes, each of which holds its pieces for all members.

    Every process calls it with the same mini-batch. It looks up what it holds, the results are added over the
    processes, and each has the embeddings of all tables; the backward needs no exchange. So each process must go on in
    the same way, as with ``array.strategy = "fixed"``.

    Args:
        weights: each member's tables, one after another: ``[rows of all tables, width]``, as `DLRM` has them. Only this
            process's pieces are kept.
        placement: of as many devices as there are processes; see `place_tables`.
        sparse: the pieces have sparse gradients, for `RowwiseAdagrad` and `SparseAdam`.
        group: of `torch.distributed`; by default all processes.

    Attributes:
        array: the pieces of this process, for an optimizer of `hfta.optim`. `RowwiseAdagrad` needs pieces that are
            divided by rows: a piece's rows are then whole.

    Raises:
        DistributedError: there is no process group, or the placement is of other devices or tables.
    """

    def __init__(
        self, weights: Sequence[Tensor], placement: Placement, *, sparse: bool = False, group: Any = None
    ) -> None:
        device = weights[0].device if weights else torch.device("cpu")
        self.ranks = group if isinstance(group, Ranks) else of_torch(group, device)
        self.placement = placement
        if placement.devices != self.ranks.size:
            raise DistributedError("not one process per device", where="placement", got=placement.devices,
                                   accepted=str(self.ranks.size))  # fmt: skip
        shape = [sum(placement.rows), placement.width]
        for i, weight in enumerate(weights):
            if list(weight.shape) != shape:
                raise DistributedError("other tables than the placement's", where=f"weights, member {i}",
                                       got=list(weight.shape), accepted=str(shape))  # fmt: skip
        pieces = placement.of_device(self.ranks.rank)
        self.array: FusedArray | None = None  # where there is nothing for this process
        if pieces:
            self.array = fuse([TablePieces(weight, placement, pieces, sparse) for weight in weights])
        self._members, self._like = len(weights), weights[0].detach()[:0]

    def __call__(self, categories: Int[Tensor, "N tables"]) -> Float[Tensor, "M N tables D"]:
        """The embeddings of all tables, the same on all processes.

        Args:
            categories: one per sample and table, the same on all processes; a negative one is none.
        """
        if self.array is None:
            shape = self._members, *categories.shape, self.placement.width
            return _Sum.apply(self._like.new_zeros(shape), self.ranks)  # type: ignore[no-any-return, no-untyped-call]
        return _Sum.apply(self.array(categories), self.ranks)  # type: ignore[no-any-return, no-untyped-call]

    @torch.no_grad()
    def weights(self) -> Float[Tensor, "M rows D"]:
        """The tables of all members, one after another, gathered on all processes."""
        rows, width = sum(self.placement.rows), self.placement.width
        found = self._like.new_zeros(self._members, rows, width)
        tables = tables_of(found, self.placement.rows)
        if self.array is not None:
            for piece, own in _own_parts(self.array, self.placement.of_device(self.ranks.rank)):
                part_of(tables[piece.table], piece).copy_(own)
        self.ranks.sum_(found)
        return found


class TablePieces(nn.Module):
    """The pieces of one member's tables on one device, in one `EmbeddingBag` by width.

    Args:
        weight: all tables, one after another.
        placement: of the tables.
        pieces: of this device.
        sparse: see `ShardedTables`.
    """

    def __init__(self, weight: Tensor, placement: Placement, pieces: Sequence[Piece], sparse: bool) -> None:
        super().__init__()
        tables = tables_of(weight.detach(), placement.rows)
        self.pieces, self.count, self.width = _by_width(pieces), len(placement.rows), placement.width
        self.bags = nn.ModuleDict()
        for width, own in self.pieces.items():
            values = torch.cat([part_of(tables[piece.table], piece) for piece in own])
            self.bags[str(width)] = nn.EmbeddingBag.from_pretrained(values, freeze=False, mode="sum", sparse=sparse)

    def forward(self, categories: Int[Tensor, "N tables"]) -> Float[Tensor, "N tables D"]:
        """The part of the embeddings that lies here; zero elsewhere."""
        samples = len(categories)
        zero = next(self.parameters()).new_zeros(samples, self.width)
        found: list[list[Tensor]] = [[] for _ in range(self.count)]
        for width, pieces in self.pieces.items():
            low = categories.new_tensor([piece.rows[0] for piece in pieces])
            high = categories.new_tensor([piece.rows[1] for piece in pieces])
            first = torch.cat([low.new_zeros(1), (high - low).cumsum(0)[:-1]])
            own = categories[:, [piece.table for piece in pieces]]
            here = (own >= low) & (own < high)
            at = torch.where(here, own - low, 0) + first
            weights = here.reshape(-1, 1).to(zero.dtype)
            rows: Tensor = self.bags[str(width)](at.reshape(-1, 1), per_sample_weights=weights)
            for piece, part in zip(pieces, rows.view(samples, len(pieces), width).unbind(1), strict=True):
                left, right = piece.columns
                found[piece.table].append(nn.functional.pad(part, (left, self.width - right)))
        return torch.stack([sum(parts, zero) for parts in found], 1)


class _Sum(torch.autograd.Function):
    """The sum over processes, all of which have the gradient of the result: it is that of each part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        return ranks.total(part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


def _by_width(pieces: Sequence[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.columns[1] - piece.columns[0], []).append(piece)
    return found


def _own_parts(array: FusedArray, pieces: Sequence[Piece]) -> list[tuple[Piece, Tensor]]:
    """The values of each piece, ``[M, rows, columns]``."""
    found: list[tuple[Piece, Tensor]] = []
    for width, own in _by_width(pieces).items():
        values = array.get_parameter(f"bags.{width}.weight").detach()
        parts = torch.split(values, [piece.rows[1] - piece.rows[0] for piece in own], dim=1)
        found += zip(own, parts, strict=True)
    return found
