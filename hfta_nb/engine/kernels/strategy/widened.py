"""Kernels of 16-bit numbers, computed in float32 and rounded once.

On a processor without a matrix unit for 16-bit numbers, their kernels may be slow: torch's backward pass of bfloat16
attention takes four times as long as that of float32 with casts, and products in float16 five times. Sums are computed
in float32 in both cases, so no precision is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


class Widened:
    """A kernel on float32 copies of its 16-bit tensors.

    Args:
        function: the kernel; its results, or the memory for them, have its tensors' dtype.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._copies: dict[Any, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        half = next(a.dtype for a in args if isinstance(a, Tensor) and a.dtype in HALVES)
        given = [self._copied(i, a) for i, a in enumerate(args)]
        buffers = {k: v for k, v in kwargs.items() if isinstance(v, Tensor) and v.dtype in HALVES}
        if buffers:
            wide = {k: self._buffer(k, v) for k, v in buffers.items()}
            self.function(*given, **{**kwargs, **wide})
            for name, buffer in buffers.items():
                buffer.copy_(wide[name])
            return None
        made = self.function(*given, **kwargs)
        if isinstance(made, tuple | list):
            return tuple(t.to(half) if isinstance(t, Tensor) and t.dtype == torch.float32 else t for t in made)
        return made.to(half)

    def _copied(self, key: Any, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in HALVES:
            return value
        buffer = self._buffer(key, value)
        buffer.copy_(value)
        return buffer

    def _buffer(self, key: Any, like: Tensor) -> Tensor:
        buffer = self._copies.get(key)
        if buffer is None or buffer.shape != like.shape:
            buffer = self._copies[key] = torch.empty_like(like, dtype=torch.float32)
        return buffer
