"""A variant of max-pooling for tensors with channels first, where torch's CPU kernel processes single entries.

With channels last, torch's other kernel is fast enough to pay for copies in both directions. Values and indices are the
same, ties and NaN included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ChannelsLast:
    """Max-pooling of a copy with channels last.

    Args:
        function: `torch.max_pool2d_with_indices` with `out` and `indices`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._buffers: tuple[Tensor, ...] | None = None

    def __call__(self, x: Tensor, *window: Any, out: Tensor, indices: Tensor) -> None:
        if self._buffers is None:
            order = torch.channels_last
            self._buffers = tuple(torch.empty_like(t, memory_format=order) for t in (x, out, indices))
        copy, found, places = self._buffers
        copy.copy_(x)
        self.function(copy, *window, out=found, indices=places)
        out.copy_(found)
        indices.copy_(places)
