"""What the tests of the package's own kernels share."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.array.native import build

NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no compiler")


def compiled(*names: str) -> dict[str, ctypes.CDLL]:
    """Libraries, without leaving them loaded for others."""
    before = dict(build._loaded)
    build._loaded.clear()
    with build.compiling():
        found = {name: build.library(name) for name in names}
    build._loaded.clear()
    build._loaded.update(before)
    assert all(library is not None for library in found.values())
    return found  # type: ignore[return-value]


def close(found: Tensor, wanted: Tensor, within: float = 1e-5, least: float = 0.0) -> bool:
    """Whether all entries are near, relative to the largest (of the size `least` at least)."""
    return bool((found - wanted).abs().max() <= within * max(least, float(wanted.abs().max())))


def train_beside(
    kind: Callable[[], nn.Module], members: int, batches: Iterable[tuple[Tensor, Tensor]], split: bool = False
) -> FusedArray:
    """Train an array beside its members alone, and see that the losses are theirs.

    Args:
        kind: makes a member.
        members: how many.
        batches: for classification, one a step.
        split: by `array(x)` and a loss of the caller's own, in place of `array.backward`.
    """
    plain = [kind() for _ in range(members)]
    array = hfta.fuse(plain)
    rates = [1e-2 * (i + 1) for i in range(members)]
    optimizer = hfta.optim.SGD(array, lr=rates)
    single = [torch.optim.SGD(net.parameters(), lr=lr) for net, lr in zip(plain, rates, strict=True)]
    for x, y in batches:
        optimizer.zero_grad()
        if split:
            losses = torch.stack([F.cross_entropy(out, y) for out in array(x)])
            losses.sum().backward()
        else:
            losses = array.backward(F.cross_entropy, x, y)
        optimizer.step()
        for loss, net, by in zip(losses, plain, single, strict=True):
            by.zero_grad()
            wanted = F.cross_entropy(net(x), y)
            wanted.backward()
            by.step()
            torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    return array
