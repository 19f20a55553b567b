"""Pads rows of logits, and of their gradient, in memory, where the loss is a kernel of this package.

Rows of 33,278 numbers of 16 bits begin at multiples of 4 bytes only, but the fast kernels of a GPU's products load 16
bytes at once. Only strides change: what lies between two rows is neither read nor written.
"""

from __future__ import annotations

import math

import torch

from hfta_nb.engine.kernels.strategy.kernel_variants import PRODUCTS
from hfta_nb.engine.replay.fuse_losses import NAME
from hfta_nb.engine.replay.fused_kernel import PatternKernel, Uses
from hfta_nb.engine.replay.restride import Layout, entries, layout_of, may_have, restrided
from hfta_nb.engine.replay.trace import Instruction

_ALIGNED_BYTES, _MULTIPLE = 16, 64
_SUM = torch.ops.aten.sum.dim_IntList


def padded_logits(uses: Uses) -> tuple[list[Instruction], dict[int, int]]:
    """The calls with rows of a multiple of 64 entries, and the bytes of the storages that become larger."""
    layouts: dict[int, Layout] = {}
    sizes: dict[int, int] = {}
    for loss in filter(_is_loss, uses.calls):
        x = loss.args[0]
        columns = x.size[2]
        if x.storage in layouts or columns * x.dtype.itemsize % _ALIGNED_BYTES == 0:
            continue
        padded = -(-columns // _MULTIPLE) * _MULTIPLE
        layout = layout_of((math.prod(x.size[:2]), columns), (columns, 1), (padded, 1))
        same = [c.results[0] for c in uses.touching(x.storage) if _is_loss(c)]
        # A gradient takes the memory of the logits if both have the same layout.
        both = {x.storage, *(p.storage for p in same if p is not None and p.size == x.size)}
        if layout is not None and all(may_have(uses, s, layout) and _strided(uses, s) for s in both):
            layouts |= dict.fromkeys(both, layout)
            sizes |= dict.fromkeys(both, entries(layout) * x.dtype.itemsize)
    return restrided(uses.calls, layouts), sizes


def _is_loss(call: Instruction) -> bool:
    return isinstance(call.function, PatternKernel) and call.function.name.startswith(NAME)


def _strided(uses: Uses, storage: int) -> bool:
    """True if only kernels use a storage that read and write rows of any stride."""
    return all(_is_loss(c) or c.function in PRODUCTS or c.function is _SUM for c in uses.touching(storage))
