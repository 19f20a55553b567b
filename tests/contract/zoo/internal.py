"""Torch's own lists for its tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def thawed() -> Iterator[None]:
    """Importing those lists freezes assignments to `torch.backends` for the whole process; after this it has not."""
    flag, names = "__allow_nonbracketed_mutation_flag", torch.backends.disable_global_flags.__globals__
    before = names[flag]
    try:
        yield
    finally:
        names[flag] = before
