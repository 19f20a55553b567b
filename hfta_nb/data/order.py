"""The order of samples in a run, and the split of data sets."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)

SPLIT_SEED = 0
"""The seed of the split of all built-in data sets into training and validation, so that results are comparable."""


def order(samples: int, seed: int, epoch: int) -> Int[Tensor, " samples"]:
    """The order of an epoch: a permutation, the same on every device for the same seed and epoch."""
    mixed = zlib.crc32(f"{seed}/{epoch}".encode())
    return torch.randperm(samples, generator=torch.Generator().manual_seed(mixed))


def sampled(weights: Tensor, seed: int, epoch: int) -> Int[Tensor, " samples"]:
    """As many samples of an epoch as there are, drawn with replacement: those of `WeightedRandomSampler` with the
    generator of `order`.

    Args:
        weights: of the samples, ``[samples]``, float64.
        seed, epoch: as for `order`.
    """
    mixed = zlib.crc32(f"{seed}/{epoch}".encode())
    return torch.multinomial(weights, len(weights), True, generator=torch.Generator().manual_seed(mixed))


@dataclass(frozen=True, eq=False)
class Fold:
    """A split of the training samples.

    Attributes:
        training, held_out: the numbers of the samples of each part.
    """

    training: Int[Tensor, " training"]
    held_out: Int[Tensor, " held_out"]


@dataclass(frozen=True)
class Draw:
    """Which training samples are a member's, and how they are drawn.

    Attributes:
        fold: the number of its fold; None for all samples.
        balanced: with replacement, so that all classes are drawn equally often; else in a random order.
    """

    fold: int | None = None
    balanced: bool = False

    @staticmethod
    def of(row: Mapping[str, Any]) -> Draw:
        """That of a member with these values of all training axes."""
        return _draw(row.get("fold"), row.get("sampling") == "balanced")


@functools.cache
def _draw(fold: int | None, balanced: bool) -> Draw:
    return Draw(fold, balanced)  # made once, as each step of a run compares those of all members


def by_member(keys: Sequence[Key], make: Callable[[Key], Tensor]) -> Tensor:
    """One tensor for all members if their keys agree, else one per member, stacked."""
    made = {key: make(key) for key in dict.fromkeys(keys)}
    return made[keys[0]] if len(made) == 1 else torch.stack([made[key] for key in keys])
