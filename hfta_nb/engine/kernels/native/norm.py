"""Batch norm of images with channels last by `norm.c`, with the arguments of torch's kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_POINTERS = (
    *("x", "grad", "weight", "bias", "out", "mean", "scale", "running_mean", "running_var"),
    *("weight_grad", "bias_grad", "room", "sums"),
)
_WIDE = 128
"""Approximate length of a row: long enough for vector instructions, short enough for the first-level cache."""


class _Norm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_ssize_t) for name in ("pixels", "channels", "fold")),
        *((name, ctypes.c_double) for name in ("eps", "momentum")),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    ]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("norm") is not None


class _Bound:
    """Common part of forward and backward.

    Args:
        function: torch's own, which is called if there is no library.
    """

    name = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        found = library("norm")
        self.function, self._call = function, None if found is None else getattr(found, self.name)
        if self._call is not None:
            self._call.restype = None
        self._size: tuple[int, int] | None = None

    def _laid(self, x: Tensor) -> _Norm:
        """The library's description of images of this size, and its work memory, which is allocated once."""
        channels = x.shape[1]
        pixels = x.numel() // channels
        if self._size != (pixels, channels):
            fold = 1
            while 2 * fold * channels <= _WIDE and pixels % (2 * fold) == 0:
                fold *= 2
            self._rooms = torch.empty(5 * fold * channels), torch.empty(2 * fold * channels, dtype=torch.float64)
            self._norm = _Norm(pixels, channels, fold)
            self._norm.room, self._norm.sums = (room.data_ptr() for room in self._rooms)
            self._size = pixels, channels
        return self._norm


class BatchNorm(_Bound):
    """`torch.native_batch_norm` in training."""

    name = "hfta_norm"

    def __call__(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._call is None:
            return self.function(x, weight, bias, running_mean, running_var, training, momentum, eps)  # type: ignore[no-any-return]
        norm = self._laid(x)
        out, mean, scale = torch.empty_like(x), x.new_empty(norm.channels), x.new_empty(norm.channels)
        norm.x, norm.out, norm.mean, norm.scale = x.data_ptr(), out.data_ptr(), mean.data_ptr(), scale.data_ptr()
        norm.weight, norm.bias = _pointer(weight), _pointer(bias)
        norm.running_mean, norm.running_var = _pointer(running_mean), _pointer(running_var)
        norm.momentum, norm.eps = momentum, eps
        self._call(ctypes.byref(norm))
        return out, mean, scale


class BatchNormBackward(_Bound):
    """`torch.ops.aten.native_batch_norm_backward` in training."""

    name = "hfta_norm_backward"

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        training: bool,
        eps: float,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self._call is None:
            rest = weight, running_mean, running_var, mean, scale, training, eps, wanted
            return self.function(grad, x, *rest)  # type: ignore[no-any-return]
        norm = self._laid(x)
        out, to_weight, to_bias = torch.empty_like(x), x.new_empty(norm.channels), x.new_empty(norm.channels)
        norm.grad, norm.x, norm.out = grad.data_ptr(), x.data_ptr(), out.data_ptr()
        norm.weight, norm.mean, norm.scale = _pointer(weight), mean.data_ptr(), scale.data_ptr()
        norm.weight_grad, norm.bias_grad = to_weight.data_ptr(), to_bias.data_ptr()
        self._call(ctypes.byref(norm))
        gradients = out, to_weight, to_bias
        return tuple(g if needed else None for g, needed in zip(gradients, wanted, strict=True))  # type: ignore[return-value]


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
