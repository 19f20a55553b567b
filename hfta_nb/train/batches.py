"""The mini-batches of a group, epoch by epoch: which samples, in which order, for all members or for each its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array import per_member
from hfta_nb.data import Data, Samples, orders, take, tree_map


@dataclass(frozen=True)
class Batch:
    """One mini-batch.

    Attributes:
        x, y: inputs and targets, each tensor ``[N, ...]``, or ``[M, N, ...]`` where `own`.
        size: N.
        own: whether every member has samples of its own.
    """

    x: Samples
    y: Samples
    size: int
    own: bool = False

    @property
    def inputs(self) -> tuple[Any, Any]:
        """`x` and `y` as a step takes them."""
        return (tree_map(per_member, self.x), tree_map(per_member, self.y)) if self.own else (self.x, self.y)

    @property
    def first(self) -> tuple[Samples, Samples]:
        """What the first member sees."""
        return (tree_map(_first, self.x), tree_map(_first, self.y)) if self.own else (self.x, self.y)


class Batches:
    """Mini-batches of data that is wholly on the device.

    Args:
        data: on the device.
        batch_size: N; the last batch of an epoch has what is left.
        device: of the members.
    """

    def __init__(self, data: Data, batch_size: int, device: torch.device) -> None:
        self.data, self.batch_size, self.device = data, batch_size, device

    def __len__(self) -> int:
        """Mini-batches in an epoch."""
        return -(-len(self.data) // self.batch_size)

    def epoch(self, epoch: int, start: int, seeds: Sequence[int]) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on.

        Args:
            epoch: from 0.
            start: the first batch, from 0.
            seeds: per member that still trains, of the order of its data.
        """
        order = orders(len(self.data), seeds, epoch).to(self.device)
        for number in range(start, len(self)):
            rows = order[..., number * self.batch_size : (number + 1) * self.batch_size]
            yield Batch(take(self.data.x, rows), take(self.data.y, rows), rows.shape[-1], order.ndim == 2)


def _first(tensor: Tensor) -> Tensor:
    return tensor[0]
