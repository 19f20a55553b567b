"""Bindings of `rows.c`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_POINTERS = ("x", "by", "weight", "bias", "out", "mean", "scale", "by_weight", "by_bias")


class _Rows(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in ("rows", "columns")),
        *((n, ctypes.c_void_p) for n in _POINTERS),
        ("eps", ctypes.c_float),
    ]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("rows") is not None


class Bound:
    """A function of the library bound to certain tensors; a call computes it.

    Args:
        name: of the function.
        columns: the length of a row.
        eps: of a layer norm.
        more: further numbers that the function takes.
        tensors: contiguous, by their name in the library; None for a missing one.
    """

    def __init__(
        self, name: str, columns: int, eps: float = 0.0, more: Sequence[int] = (), **tensors: Tensor | None
    ) -> None:
        given = {k: t for k, t in tensors.items() if t is not None}
        self._kept = list(given.values())
        self._rows = _Rows(given.get("by", given["x"]).numel() // columns, columns)
        self._rows.eps = eps
        for key, tensor in given.items():
            setattr(self._rows, key, tensor.data_ptr())
        self._call = getattr(library("rows"), name)
        self._call.restype = None
        self._arguments = ctypes.byref(self._rows), *map(ctypes.c_ssize_t, more)

    def __call__(self) -> None:
        self._call(*self._arguments)


def log_softmax_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """The gradient over the last axis."""
    return Bound("hfta_log_softmax_backward", args[0].shape[-1], x=args[1], by=args[0], out=kwargs["out"])


def layer_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Like `native_layer_norm`."""
    x, shape, weight, bias, eps = args
    rooms = {k: kwargs[k] for k in ("out", "mean", "scale")}
    return Bound("hfta_layer_norm", math.prod(shape), eps, x=x, weight=weight, bias=bias, **rooms)


def layer_norm_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Like `native_layer_norm_backward`."""
    by, x, shape, mean, scale, weight, *_ = args
    rooms = {k: kwargs.get(k) for k in ("out", "by_weight", "by_bias")}
    given = {"x": x, "by": by, "mean": mean, "scale": scale, "weight": weight, **rooms}
    return Bound("hfta_layer_norm_backward", math.prod(shape), 0.0, **given)


def column_sums(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Like ``sum.dim_IntList`` over axes that directly precede the last."""
    x, dims = args[:2]
    return Bound("hfta_column_sums", x.shape[-1], more=(math.prod(x.shape[d] for d in dims),), x=x, out=kwargs["out"])


def embedding_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Like `embedding_dense_backward`, without scaling by frequency."""
    by, index, table, padding, _ = args
    ordered = index if index.is_contiguous() else torch.empty(index.shape, dtype=index.dtype)
    columns = by.shape[-1]
    bound = Bound("hfta_embedding_backward", columns, more=(table, padding), x=ordered, by=by, out=kwargs["out"])
    if ordered is index:
        return bound

    def run() -> None:
        ordered.copy_(index)
        bound()

    return run
