"""Common parts of tests with several threads: blocks of members in parallel, and the same blocks in sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from tests.contract.serial import make

MEMBERS, SEEDS = 4, [1, 2, 3, 4]
CPU = torch.device("cpu")


def pair(build: Any, dtype: torch.dtype = torch.float64, block: int = 2) -> tuple[FusedArray, FusedArray]:
    """The same array twice: with blocks side by side, and in turn."""
    arrays = [hfta.fuse(make(build, MEMBERS, dtype, CPU), SEEDS) for _ in range(2)]
    for array, way in zip(arrays, ("blocks", "one"), strict=True):
        array.threads, array.block_size = way, block
    return arrays[0], arrays[1]


def branches(array: FusedArray) -> list[int]:
    """How many threads what is replayed runs on, of each kind of call."""
    made = [s.program for s in array._calls.steps]
    return [0 if p is None else 1 if p.branches is None else len(p.branches) for p in made]


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Six samples for `replay.mlp`, and targets."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(6, n, dtype=dtype, generator=generator) for n in (5, 3))  # type: ignore[return-value]
