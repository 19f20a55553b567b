"""Variants of max-pooling for tensors with channels first, where torch's CPU kernel processes single entries.

By pairs, every second column and row of the whole tensor is compared, in a fifth to a half of that kernel's time. With
channels last, torch's other kernel is fast enough to pay for copies in both directions. Values and indices are the same
in all variants, ties and NaN included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def max_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    *,
    out: Tensor,
    indices: Tensor,
) -> Any:
    """`torch.max_pool2d_with_indices` into `out` and `indices`."""
    pairs = list(kernel_size) == [2, 2] and list(stride or kernel_size) == [2, 2] and not ceil_mode
    plain = not any(padding) and all(d == 1 for d in dilation) and x.is_contiguous() and out.is_contiguous()
    if not (pairs and plain and x.device.type == "cpu" and x.is_floating_point()):
        given = kernel_size, stride, padding, dilation, ceil_mode
        return _aten.max_pool2d_with_indices.out(x, *given, out=out, indices=indices)
    rows, columns = out.shape[-2:]
    left, right = x[..., : 2 * rows, 0 : 2 * columns : 2], x[..., : 2 * rows, 1 : 2 * columns : 2]
    wide = torch.maximum(left, right)
    upper, lower = wide[..., 0::2, :], wide[..., 1::2, :]
    torch.maximum(upper, lower, out=out)
    if out.sum().isnan():  # NaN counts as the largest and needs another comparison
        return _aten.max_pool2d_with_indices.out(x, kernel_size, stride, out=out, indices=indices)
    is_right = torch.ne(wide, left).view(torch.uint8)  # the first of two equal values is taken
    is_lower = torch.ne(out, upper).view(torch.uint8)
    upper, lower = is_right[..., 0::2, :], is_right[..., 1::2, :]
    chosen = torch.bitwise_xor(upper, lower).bitwise_and_(is_lower).bitwise_xor_(upper)
    width = x.shape[-1]
    first = torch.arange(0, 2 * rows * width, 2 * width).view(-1, 1) + torch.arange(0, 2 * columns, 2)
    return out, indices.copy_(is_lower).mul_(width).add_(first).add_(chosen)


class ChannelsLast:
    """Max-pooling of a copy with channels last.

    Args:
        function: `torch.max_pool2d_with_indices` with `out` and `indices`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._rooms: tuple[Tensor, ...] | None = None

    def __call__(self, x: Tensor, *window: Any, out: Tensor, indices: Tensor) -> None:
        if self._rooms is None:
            order = torch.channels_last
            self._rooms = tuple(torch.empty_like(t, memory_format=order) for t in (x, out, indices))
        copy, found, places = self._rooms
        copy.copy_(x)
        self.function(copy, *window, out=found, indices=places)
        out.copy_(found)
        indices.copy_(places)
