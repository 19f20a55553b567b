"""A mini-batch on its way from rank 0: targets go to every rank, of the inputs each rank gets its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.workers.distributed.rank_rows import bounds, samples_in, share, sizes_of
from hfta_nb.workers.distributed.ranks import Ranks


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a mini-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    per_member: bool

    def room(self, device: torch.device, rows: int | None = None) -> Tensor:
        """Memory for the tensor, or for so many rows of it."""
        shape = list(self.shape)
        if rows is not None:
            shape[1 if self.per_member else 0] = rows
        return torch.empty(shape, dtype=self.dtype, device=device)

    def marked(self, tensor: Tensor) -> Any:
        """The tensor as the mini-batch has it."""
        return per_member(tensor) if self.per_member else tensor


@dataclass(frozen=True)
class Announced:
    """A mini-batch without its numbers.

    Attributes:
        x, y: inputs and targets, with a `Slot` for each tensor.
        samples: N.
    """

    x: Any
    y: Any
    samples: int

    @classmethod
    def of(cls, x: Any, y: Any) -> Announced:
        """Of a mini-batch.

        Raises:
            DistributedError: there are no samples in it.
        """
        return cls(_form(x), _form(y), samples_in(x))

    def sent(self, ranks: Ranks, x: Any, y: Any) -> Any:
        """Send the mini-batch that this announces; returns the inputs of rank 0.

        Raises:
            DistributedError: an input has no row per sample, or a rank is lost.
        """
        sizes = sizes_of(self.samples, ranks.size)
        shares = [flatten(share(x, rank, sizes))[0] for rank in range(ranks.size)]
        for leaf in map(_tensor, flatten(y)[0]):
            if leaf is not None:
                ranks.broadcast_(leaf)
        rows = [(_tensor(leaf), rank) for rank in range(1, ranks.size) for leaf in shares[rank]]
        ranks.send([(leaf.to(ranks.device).contiguous(), rank) for leaf, rank in rows if leaf is not None])
        return share(x, 0, sizes)

    def broadcast(self, ranks: Ranks) -> tuple[Any, Any]:
        """The whole mini-batch, which rank 0 gives to all, tensor by tensor."""

        def given(slot: Slot) -> Any:
            room = slot.room(ranks.device)
            ranks.broadcast_(room)
            return slot.marked(room)

        return _filled(self.x, given), _filled(self.y, given)

    def received(self, ranks: Ranks) -> tuple[Any, Any]:
        """This rank's rows of the inputs, and all targets."""
        start, stop = bounds(ranks.rank, sizes_of(self.samples, ranks.size))

        def target(slot: Slot) -> Any:
            room = slot.room(ranks.device)
            ranks.broadcast_(room)
            return slot.marked(room)

        def rows(slot: Slot) -> Any:
            room = slot.room(ranks.device, stop - start)
            ranks.receive_(room)
            return slot.marked(room)

        y = _filled(self.y, target)
        return _filled(self.x, rows), y


def _form(tree: Any) -> Any:
    leaves, rebuild = flatten(tree)
    slots = []
    for leaf in leaves:
        tensor = _tensor(leaf)
        own = isinstance(leaf, PerMember)
        slots.append(leaf if tensor is None else Slot(tuple(tensor.shape), tensor.dtype, own))
    return unflatten(rebuild, slots)


def _filled(tree: Any, fill: Any) -> Any:
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [fill(leaf) if isinstance(leaf, Slot) else leaf for leaf in leaves])


def _tensor(leaf: Any) -> Tensor | None:
    value = leaf.value if isinstance(leaf, PerMember) else leaf
    return value if isinstance(value, Tensor) else None
