"""Telling storages apart by their address, without holding their memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Addresses:
    """Keeps the addresses of storages from being given to others; their memory is free once nobody else holds them.

    Source: the weak references of `torch.multiprocessing.reductions.StorageWeakRef`.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        weakref.finalize(self, _free, self._kept)

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Let no other storage have this one's address for as long as this object lives."""
        self._kept.append(storage._weak_ref())


def _free(kept: list[Any]) -> None:
    for reference in kept:
        torch.UntypedStorage._free_weak_ref(reference)  # type: ignore[no-untyped-call]
    kept.clear()
