"""The order of samples in a run, and the split of data sets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

SPLIT_SEED = 0
"""The seed of the split of all built-in data sets into training and validation, so that results are comparable."""


def order(samples: int, seed: int, epoch: int) -> Int[Tensor, " samples"]:
    """The order of an epoch: a permutation, the same on every device for the same seed and epoch."""
    mixed = zlib.crc32(f"{seed}/{epoch}".encode())
    return torch.randperm(samples, generator=torch.Generator().manual_seed(mixed))


def orders(
    samples: int, seeds: Sequence[int], epoch: int, behind: Sequence[int] = ()
) -> Int[Tensor, " samples"] | Int[Tensor, "M samples"]:
    """One order for all if the seeds agree, else one per member.

    Args:
        samples: how many there are.
        seeds: per member.
        epoch: of the first members.
        behind: per member, how many epochs later it has begun; none without.
    """
    keys = [(seed, epoch - late) for seed, late in zip(seeds, behind or [0] * len(seeds), strict=True)]
    made = {key: order(samples, *key) for key in dict.fromkeys(keys)}
    return made[keys[0]] if len(made) == 1 else torch.stack([made[key] for key in keys])
