"""Common parts of tests of the package's own kernels."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED
from tests.training import train

NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no compiler")


_compiled: dict[tuple[str, ...], ctypes.CDLL | None] = {}


def compiled(*names: str) -> dict[str, ctypes.CDLL]:
    """Libraries for the width that is chosen, once a process, without leaving them loaded for others."""
    asked = [os.environ.get(variable, "") for variable in (build.MARCH, build.FLAGS)]
    before = dict(build._loaded)
    with build.compiling():
        for key in ((name, *asked) for name in names):
            if key not in _compiled:
                build._loaded.clear()
                _compiled[key] = build.library(key[0])
    build._loaded.clear()
    build._loaded.update(before)
    found = {name: _compiled[name, *asked] for name in names}
    assert all(library is not None for library in found.values())
    return found  # type: ignore[return-value]


def misread(name: str, right: str, wrong: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """A library whose source says something wrong, made in this folder, in which sources are looked for from now on."""
    for source in Path(build.__file__).parent.glob("*.[ch]"):
        shutil.copy(source, folder)
    text = (folder / f"{name}.c").read_text()
    assert right in text
    (folder / f"{name}.c").write_text(text.replace(right, wrong))
    monkeypatch.setattr(build, "__file__", str(folder / "build.py"))
    with build.compiling():
        made = build.library(name)
    assert made is not None
    return made


def close(found: Tensor, wanted: Tensor, within: float = 1e-5, least: float = 0.0) -> bool:
    """Whether all entries are near, relative to the largest (of the size `least` at least)."""
    return bool((found - wanted).abs().max() <= within * max(least, float(wanted.abs().max())))


def near(found: Tensor, torchs: Tensor, exact: Tensor, times: float = 3.0) -> None:
    """See that a result is no further from what is exact than torch's own in float32, so many times over."""
    least = torch.finfo(torch.float32).eps * float(exact.abs().max())
    assert float((found - exact).abs().max()) <= times * max(float((torchs - exact).abs().max()), least)


def channels_last(images: Tensor) -> Tensor:
    """Images in this order in memory."""
    return images.contiguous(memory_format=torch.channels_last)


def taken(array: FusedArray, among: str = "") -> list[str]:
    """Functions, of those whose names contain so much, that the package's own kernels compute: one entry a shape."""
    table = array.explain()
    own = table["function"][table["how"].str.contains(f": {COMPILED} ")]
    return sorted(name for f in own if among in (name := f.partition(" [")[0]))


def _trained(
    kind: Callable[[], nn.Module],
    size: tuple[int, ...],
    block_size: int,
    last: bool,
    strategy: str,
    dtype: torch.dtype = torch.float32,
    fuse: Callable[[list[nn.Module], list[int]], FusedArray] = hfta.fuse,
) -> tuple[Tensor, FusedArray]:
    """Losses of eight steps, of which the later ones are replayed."""
    torch.manual_seed(0)
    array = fuse([kind().to(dtype) for _ in range(2)], [1, 2])
    array.strategy, array.block_size = strategy, block_size
    batches = []
    for number in range(8):
        draw = torch.Generator().manual_seed(number)
        x, y = torch.randn(size, generator=draw, dtype=dtype), torch.randint(0, 4, size[:1], generator=draw)
        batches.append((channels_last(x) if last else x, y))
    return train(array, batches), array


def train_measured(
    kind: Callable[[], nn.Module],
    size: tuple[int, ...],
    block_size: int,
    last: bool = False,
    fuse: Callable[[list[nn.Module], list[int]], FusedArray] = hfta.fuse,
) -> FusedArray:
    """Train two members by the fastest kernels, and see that they become what torch's make of them.

    Args:
        kind: makes a member, which tells four classes apart.
        size: of a batch.
        block_size: of the array.
        last: whether a batch lies with channels last.
        fuse: makes the array of members and seeds.
    """
    found, array = _trained(kind, size, block_size, last, "measured", fuse=fuse)
    wanted, plain = _trained(kind, size, block_size, last, "fixed", fuse=fuse)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
    for (name, a), b in zip(array.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5), name
    assert not taken(plain)
    return array


def see_torchs_in_float64(
    kind: Callable[[], nn.Module], size: tuple[int, ...], block_size: int, last: bool = False, among: str = ""
) -> None:
    """See that in float64 the fastest kernels are torch's, to the bit; arguments as above, and those of `taken`."""
    found, array = _trained(kind, size, block_size, last, "measured", torch.float64)
    assert not taken(array, among)
    assert torch.equal(found, _trained(kind, size, block_size, last, "fixed", torch.float64)[0])


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
    batches = list(batches)
    losses = train(array, batches, rates, split)
    for i, (net, lr) in enumerate(zip(plain, rates, strict=True)):
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for (x, y), loss in zip(batches, losses[:, i], strict=True):
            optimizer.zero_grad()
            wanted = F.cross_entropy(net(x), y)
            wanted.backward()
            optimizer.step()
            torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    return array
