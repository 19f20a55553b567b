"""Batched matrix products by a kernel that depends on the memory layout.

oneDNN's kernels receive contiguous matrices, one member after another, or the transposes of such matrices. Torch copies
other layouts, and a transposed weight that is a column of an array's parameters entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Copied:
    """A product whose factors are copied to contiguous memory first, in their own order."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._given: list[Tensor] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._passed: list[Tensor] = []

    def __call__(self, *args: Tensor, **kwargs: Any) -> Any:
        if len(args) != len(self._given) or any(a is not b for a, b in zip(args, self._given, strict=True)):
            self._prepare(args)
        for buffer, source in self._copies:
            buffer.copy_(source)
        return self.function(*self._passed, **kwargs)

    def _prepare(self, args: tuple[Tensor, ...]) -> None:
        self._given, self._copies, self._passed = list(args), [], list(args)
        for i in (len(args) - 2, len(args) - 1):
            source = args[i]
            turned = source.stride(1) == 1 and source.stride(2) != 1
            flat = source.transpose(1, 2) if turned else source
            if not flat.is_contiguous():
                buffer = flat.new_empty(flat.shape)
                self._copies.append((buffer, flat))
                self._passed[i] = buffer.transpose(1, 2) if turned else buffer
