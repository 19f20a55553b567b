"""Batches in memory that processes share: a file that both map, in memory where the system has such a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hfta_nb.data.samples import Samples, leaves, tree_map

IN_MEMORY = Path("/dev/shm")
"""Linux's folder of shared memory."""

ROOM_BYTES = 2**28
"""Shared memory must have so much room left; containers often have little."""

ALIGNED = 64
"""Bytes to a multiple of which a tensor begins in a slot."""


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a batch are in a slot. It crosses from process to process as plain data.

    Attributes:
        x, y: by tensor, its dtype, shape and first byte.
        x_keys, y_keys: the structure, with None in place of each tensor.
        size: bytes in all.
    """

    x: tuple[tuple[str, tuple[int, ...], int], ...]
    y: tuple[tuple[str, tuple[int, ...], int], ...]
    x_keys: Samples
    y_keys: Samples
    size: int


class Folder:
    """A folder for slots, which is removed with this object, on `close` or when the process ends."""

    def __init__(self) -> None:
        preallocated = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
        preallocated = preallocated and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES
        self.path = Path(tempfile.mkdtemp(prefix="hfta_nb-", dir=IN_MEMORY if preallocated else None))
        self._owner = os.getpid()
        self.close = weakref.finalize(self, _removed, self.path, self._owner)
        self._made = 0

    def slot(self) -> Slot:
        """A new, empty slot."""
        self._made += 1
        return Slot(self.path / str(self._made))


class Slot:
    """Room for one batch, which grows with the largest.

    Args:
        path: of its file; whoever has the path can map it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: Tensor | None = None

    def write(self, x: Samples, y: Samples) -> Layout:
        """Write a batch over the one before.

        Raises:
            OSError: there is no room for it.
        """
        parts, at = [], 0
        for samples in (x, y):
            found = []
            for tensor in leaves(samples):
                found.append((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), at))
                at += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
            parts.append(tuple(found))
        layout = Layout(parts[0], parts[1], _keys(x), _keys(y), max(1, at))
        self._grow(layout.size)
        for tensor, there in zip([*leaves(x), *leaves(y)], self._views([*parts[0], *parts[1]]), strict=True):
            there.copy_(tensor)
        return layout

    def read(self, layout: Layout) -> tuple[Samples, Samples]:
        """A copy of the batch that was written with this layout."""
        if self._bytes is None or len(self._bytes) < layout.size:
            self._map(layout.size)
        x, y = ([view.clone() for view in self._views(part)] for part in (layout.x, layout.y))
        return _built(x, layout.x_keys), _built(y, layout.y_keys)

    def _grow(self, size: int) -> None:
        if self._bytes is not None and len(self._bytes) >= size:
            return
        with open(self.path, "ab") as file:
            if hasattr(os, "posix_fallocate"):  # fails where there is no room; writing to the map would end the process
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        self._map(size)

    def _map(self, size: int) -> None:
        self._bytes = torch.from_file(str(self.path), shared=True, size=size, dtype=torch.uint8)

    def _views(self, parts: Sequence[tuple[str, tuple[int, ...], int]]) -> list[Tensor]:
        assert self._bytes is not None  # mapped before
        found = []
        for name, shape, at in parts:
            dtype: torch.dtype = getattr(torch, name)
            size = dtype.itemsize * torch.Size(shape).numel()
            found.append(self._bytes[at : at + size].view(dtype).view(shape))
        return found


def _keys(samples: Samples) -> Samples:
    return tree_map(lambda _: None, samples)


def _built(tensors: list[Tensor], keys: Samples) -> Samples:
    left = iter(tensors)
    return tree_map(lambda _: next(left), keys)


def _removed(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has a copy of the folder's object
        shutil.rmtree(path, ignore_errors=True)
