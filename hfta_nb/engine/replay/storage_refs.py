"""Identifies storages by address, without holding their memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Addresses:
    """Reserves the addresses of storages; their memory is freed once no other object holds it.

    Source: the weak references of `torch.multiprocessing.reductions.StorageWeakRef`.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        weakref.finalize(self, _free, self._kept)

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Prevent reuse of this storage's address during the lifetime of this object."""
        self._kept.append(storage._weak_ref())


def _free(kept: list[Any]) -> None:
    for reference in kept:
        torch.UntypedStorage._free_weak_ref(reference)  # type: ignore[no-untyped-call]
    kept.clear()
