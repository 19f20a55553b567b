"""Bindings of `conv.c`: convolutions of images with channels last."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_NUMBERS = (
    *("samples", "groups", "in", "out", "height", "width", "made_height", "made_width"),
    *("tall", "wide", "above", "beside", "down", "along"),
    *("weight_out", "weight_in", "weight_row", "weight_column"),
    *("given_out", "given_in", "given_row", "given_column"),
)
_POINTERS = ("x", "weight", "bias", "grad", "result", "by_x", "by_weight", "by_bias", "room")


class _Conv(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_ssize_t) for n in _NUMBERS), *((n, ctypes.c_void_p) for n in _POINTERS)]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("conv") is not None


def takes(weight: Sequence[int], how: Sequence[Any]) -> bool:
    """True if the library supports such a convolution.

    Args:
        weight: its size.
        how: stride, padding, dilation, whether it is transposed, output padding, groups.
    """
    if len(weight) != 4 or any(d != 1 for d in how[2]):
        return False
    _, _, *window = weight
    return window != [1, 1] and all(0 <= p < size for p, size in zip(_both(how[1]), window, strict=True))


class Bound:
    """A function of the library bound to certain tensors; a call computes it.

    Args:
        name: of the function.
        image, made: input and output of the convolution, or tensors with their layouts: contiguous pixels with channels
            last.
        how: as in `takes`.
        tensors: by their name in the library; None for a missing one.
    """

    def __init__(self, name: str, image: Tensor, made: Tensor, how: Sequence[Any], **tensors: Tensor | None) -> None:
        found = library("conv")
        assert found is not None  # the caller has checked `usable`
        given = {k: t for k, t in tensors.items() if t is not None}
        weight, groups = given["weight"], how[-1]
        (samples, channels, height, width), (out, _, tall, wide) = image.shape, weight.shape
        self._conv = _Conv(
            *(samples, groups, channels // groups, out // groups, height, width, *made.shape[2:], tall, wide),
            *(*_both(how[1]), *_both(how[0]), *weight.stride(), *given.get("by_weight", weight).stride()),
        )
        self._argument = ctypes.byref(self._conv)
        found.hfta_conv_room.restype = ctypes.c_ssize_t
        given["room"] = torch.empty(found.hfta_conv_room(self._argument))
        for key, tensor in given.items():
            setattr(self._conv, key, tensor.data_ptr())
        self._kept = given
        self._call = getattr(found, name)
        self._call.restype = None

    def __call__(self) -> None:
        self._call(self._argument)


def forward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Like `convolution`. A transposed convolution computes the gradient of a convolution by its image."""
    x, weight, bias, *how = args
    out = kwargs["out"]
    if how[3]:
        return Bound("hfta_conv_backward", out, x, how, weight=weight, bias=bias, grad=x, by_x=out)
    return Bound("hfta_conv", x, out, how, weight=weight, bias=bias, x=x, result=out)


def backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Like `convolution_backward`; gradients that are not needed are None. A transposed one has no gradient of a
    bias."""
    grad, x, weight, _, *how, _ = args
    if not how[3]:
        rooms = {k: kwargs.get(k) for k in ("by_x", "by_weight", "by_bias")}
        return Bound("hfta_conv_backward", x, grad, how, weight=weight, x=x, grad=grad, **rooms)
    by_x, by_weight = kwargs.get("by_x"), kwargs.get("by_weight")
    calls = []
    if by_x is not None:
        calls.append(Bound("hfta_conv", grad, x, how, weight=weight, x=grad, result=by_x))
    if by_weight is not None:
        calls.append(Bound("hfta_conv_backward", grad, x, how, weight=weight, x=grad, grad=x, by_weight=by_weight))
    return Several(calls)


class Several:
    """Several functions, called in order."""

    def __init__(self, calls: Sequence[Bound]) -> None:
        self._calls = calls

    def __call__(self) -> None:
        for call in self._calls:
            call()


def _both(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[-1]
