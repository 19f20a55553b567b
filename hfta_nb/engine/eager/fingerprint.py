"""Fingerprints of values: equal as long as a value has not been changed, in place or by a new object."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MAX_DEPTH = 6
_MAX_ENTRIES = 2000
"""Larger containers are known by their identity and length: a fingerprint is made in each call."""
_MAX_BYTES = 65536
_ATOMS = (
    *(int, float, complex, str, bytes, bool, type(None), range, slice),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)


class Same:
    """An object that is equal to itself alone, and only while its version is the same."""

    __slots__ = ("value", "version")

    def __init__(self, value: Any, version: Any = None) -> None:
        self.value, self.version = value, version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value and bool(self.version == other.version)

    __hash__ = None  # type: ignore[assignment]


def fingerprint(value: Any, depth: int = 0) -> Any:
    """A value to compare by ``==`` with another fingerprint of the same attribute.

    Random streams, modules and functions are known by their identity.
    """
    if isinstance(value, _ATOMS):
        return type(value), value
    if isinstance(value, Tensor):
        return Same(value, None if value.is_inference() else value._version)
    if depth > _MAX_DEPTH or isinstance(value, nn.Module | types.FunctionType | types.ModuleType | type):
        return Same(value)
    if isinstance(value, np.ndarray):
        return Same(value, value.tobytes() if value.nbytes <= _MAX_BYTES and not value.dtype.hasobject else None)
    if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        return _of_container(value, depth)
    held = getattr(value, "__dict__", None)
    return Same(value, fingerprint(held, depth + 1) if isinstance(held, dict) and held else None)


def _of_container(value: Any, depth: int) -> Any:
    plain: Any = list if isinstance(value, list) else tuple if isinstance(value, tuple) else type(value)
    entries = plain.__len__(value)  # a subclass may forbid its own
    if entries > _MAX_ENTRIES:
        return Same(value, entries)
    if isinstance(value, Mapping):
        parts: Any = [(k, fingerprint(v, depth + 1)) for k, v in value.items()]
    elif isinstance(value, set | frozenset):
        parts = set(value)
    else:
        parts = [fingerprint(v, depth + 1) for v in plain.__iter__(value)]
    return type(value), parts
