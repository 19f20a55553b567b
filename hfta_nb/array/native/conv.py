"""What `conv.c` computes, bound to the tensors that it is about: convolutions of images with channels last."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.native.build import library

_NUMBERS = (
    *("samples", "groups", "in", "out", "height", "width", "made_height", "made_width"),
    *("tall", "wide", "above", "beside"),
    *("weight_out", "weight_in", "weight_row", "weight_column"),
    *("given_out", "given_in", "given_row", "given_column"),
)
_POINTERS = ("x", "weight", "bias", "grad", "result", "by_x", "by_weight", "by_bias", "room")


class _Conv(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_ssize_t) for n in _NUMBERS), *((n, ctypes.c_void_p) for n in _POINTERS)]


def usable() -> bool:
    """Whether the library is there. If it is not, it is compiled in the background, for processes to come."""
    return library("conv", wait=False) is not None


def takes(weight: Sequence[int], how: Sequence[Any]) -> bool:
    """Whether the library computes such a convolution.

    Args:
        weight: its size.
        how: stride, padding, dilation, whether it is transposed, padding of the output, groups.
    """
    stride, padding, dilation, transposed, *_ = how
    plain = len(weight) == 4 and not transposed and {*stride, *dilation} == {1}
    window = [*weight[2:]]
    around = [padding[0], padding[-1]] if len(padding) > 0 else [0, 0]
    return plain and window != [1, 1] and all(0 <= p < size for p, size in zip(around, window, strict=True))


class Bound:
    """A function of the library on certain tensors; called, it computes.

    Args:
        name: of the function.
        x, weight: of the convolution; pixels of `x` are without gaps, and channels side by side.
        made: size of the result.
        how: as in `takes`.
        tensors: the others, by what they are there; None for none.
    """

    def __init__(
        self, name: str, x: Tensor, weight: Tensor, made: Sequence[int], how: Sequence[Any], **tensors: Tensor | None
    ) -> None:
        found = library("conv", wait=False)
        assert found is not None  # asked before
        _, padding, *_, groups = how
        (samples, channels, height, width), (out, _, tall, wide) = x.shape, weight.shape
        given = {k: t for k, t in {"x": x, "weight": weight, **tensors}.items() if t is not None}
        by_weight = given.get("by_weight", weight)
        self._conv = _Conv(
            *(samples, groups, channels // groups, out // groups, height, width, *made[2:], tall, wide),
            *(padding[0], padding[-1], *weight.stride(), *by_weight.stride()),
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
    """As `convolution`."""
    x, weight, bias, *how = args
    out = kwargs["out"]
    return Bound("hfta_conv", x, weight, out.shape, how, bias=bias, result=out)


def backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """As `convolution_backward`; what is not asked for has no room."""
    grad, x, weight, _, *how, _ = args
    rooms = {k: kwargs.get(k) for k in ("by_x", "by_weight", "by_bias")}
    return Bound("hfta_conv_backward", x, weight, grad.shape, how, grad=grad, **rooms)
