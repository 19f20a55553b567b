"""The path that a model takes through torch: which functions it calls, with arguments of which kind.

Two calls of a model with the same path are fused by the same rules. A new path means that something that the code reads
has changed (an attribute, a counter, a global variable), so that the call must be verified again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_SMALL = 8
"""Integers up to this size (axes, kernel sizes, paddings) choose how a function runs; larger ones are mostly counts."""
_TOLD_APART = frozenset((bool, str, type(None), torch.dtype, torch.layout, torch.memory_format))


class CallPath:
    """A hash of the functions that were called, in order.

    Attributes:
        value: the hash.
    """

    def __init__(self) -> None:
        self.value = 0

    def add(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append a function and the kinds of its arguments."""
        # In each call that is not recorded: tensors, and values that count as they are, take no call of `_kind`.
        kinds = [Tensor if type(v) is Tensor else v if type(v) in _TOLD_APART else _kind(v) for v in args]
        if kwargs:
            kinds += kwargs
            kinds += [v if type(v) in _TOLD_APART else _kind(v) for v in kwargs.values()]
        self.value = hash((self.value, function, *kinds))


def _kind(value: Any) -> Any:
    """What may decide how a function runs with this argument."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return Tensor
    if kind is int:
        return (int, value) if -_SMALL <= value <= _SMALL else int  # 1 is equal to True
    if kind is float:
        return (float, value) if value in (0.0, 1.0) else float
    if kind in _TOLD_APART:
        return value
    if kind is tuple or kind is list:
        return kind, tuple(map(_kind, value))
    return kind
