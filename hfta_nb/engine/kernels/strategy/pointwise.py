"""Pointwise convolutions of images with channels last, as matrix products of pixels and channels without copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Pointwise:
    """A 1 x 1 convolution ``[N, C, H, W]`` without padding; each group of channels is a separate product.

    Args:
        function: the convolution.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
    ) -> Tensor:
        x = _every(x, stride)
        samples, _, height, width = x.shape
        made = weight.shape[0]
        rows, factor = _pixels(x), weight.view(made, -1)
        if groups == 1:
            out = torch.mm(rows, factor.t()) if bias is None else torch.addmm(bias, rows, factor.t())
        else:
            out = x.new_empty(len(rows), made)
            for a, b, buffer in zip(_parts(rows, groups), _parts(factor.t(), groups), _parts(out, groups), strict=True):
                torch.mm(a, b, out=buffer)
            if bias is not None:
                out += bias
        return _image(out, samples, height, width)


class PointwiseBackward:
    """Its gradients.

    Args:
        function: the convolution's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias_sizes: Any,
        stride: Sequence[int],
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        samples, made, height, width = grad.shape
        upstream, factor = _pixels(grad), weight.view(made, -1)
        to_x = to_weight = None
        if wanted[0]:
            found = _by_group(upstream, factor, groups, across=True)
            to_x = _spread(_image(found, samples, height, width), x, stride)
        if wanted[1]:
            to_weight = _by_group(upstream.t(), _pixels(_every(x, stride)), groups, across=False).view(weight.shape)
        return to_x, to_weight, upstream.sum(0) if wanted[2] else None


def _by_group(a: Tensor, b: Tensor, groups: int, across: bool) -> Tensor:
    """``a @ b`` for each group separately.

    Args:
        across: groups are columns of `a`, rows of `b` and columns of the result; otherwise rows of `a` and of the
            result, and columns of `b`.
    """
    if groups == 1:
        return torch.mm(a, b)
    if across:
        out = a.new_empty(len(a), groups * b.shape[1])
        pairs = zip(_parts(a, groups), b.chunk(groups), _parts(out, groups), strict=True)
    else:
        out = a.new_empty(len(a), b.shape[1] // groups)
        pairs = zip(a.chunk(groups), _parts(b, groups), out.chunk(groups), strict=True)
    for one, two, buffer in pairs:
        torch.mm(one, two, out=buffer)
    return out


def _parts(matrix: Tensor, groups: int) -> Sequence[Tensor]:
    return matrix.chunk(groups, 1)


def _every(x: Tensor, stride: Sequence[int]) -> Tensor:
    """The pixels that a convolution of this stride reads."""
    if all(step == 1 for step in stride):
        return x
    down, along = stride[0], stride[-1]
    return x[:, :, ::down, ::along].contiguous(memory_format=torch.channels_last)


def _spread(grad: Tensor, x: Tensor, stride: Sequence[int]) -> Tensor:
    """The gradient for all pixels; zero for pixels that the convolution does not read."""
    if all(step == 1 for step in stride):
        return grad
    buffer = torch.zeros_like(x)
    buffer[:, :, :: stride[0], :: stride[-1]] = grad
    return buffer


def _pixels(x: Tensor) -> Tensor:
    samples, channels, height, width = x.shape
    return x.as_strided((samples * height * width, channels), (channels, 1), x.storage_offset())


def _image(rows: Tensor, samples: int, height: int, width: int) -> Tensor:
    channels = rows.shape[1]
    return rows.as_strided(
        (samples, channels, height, width), (height * width * channels, 1, width * channels, channels)
    )
