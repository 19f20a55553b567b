"""Bindings of the matrix products of `product.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_NUMBERS = (
    *("members", "rows", "inner", "columns", "a_member", "a_row", "a_inner", "b_member", "b_inner", "b_column"),
    *("c_member", "c_row", "bias_member", "bias_row", "mask_member", "mask_row", "relu"),
)
_POINTERS = ("a", "b", "c", "bias", "mask", "room")


class _Product(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_ssize_t) for n in _NUMBERS), *((n, ctypes.c_void_p) for n in _POINTERS)]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("product") is not None


@cache
def _function(found: ctypes.CDLL) -> Callable[[Any], None]:
    function = found.hfta_product
    function.restype = None
    return function


class Bound:
    """A product bound to certain tensors; a call computes it.

    Args:
        found: the library.
        bias: added to the product, in shape of `out` (expanded); None for none.
        a, b, out: ``[M, rows, inner]``, ``[M, inner, columns]`` and ``[M, rows, columns]``; the columns of `out` and of
            the bias are adjacent in memory.
    """

    def __init__(self, found: ctypes.CDLL, bias: Tensor | None, a: Tensor, b: Tensor, out: Tensor) -> None:
        (members, rows, inner), columns = a.shape, b.shape[2]
        found.hfta_product_room.restype = ctypes.c_ssize_t
        room = torch.empty(max(1, found.hfta_product_room(ctypes.c_ssize_t(inner))), dtype=torch.float32)
        self.out, self._kept = out, [bias, a, b, room]
        self._product = _Product(
            *(members, rows, inner, columns, *a.stride(), *b.stride(), out.stride(0), out.stride(1)),
            *((0, 0) if bias is None else (bias.stride(0), bias.stride(1))),
            *(0, 0, 0, a.data_ptr(), b.data_ptr(), out.data_ptr()),
            *(None if bias is None else bias.data_ptr(), None, room.data_ptr()),
        )
        self._call, self._argument = _function(found), ctypes.byref(self._product)

    def __call__(self) -> None:
        self._call(self._argument)

    def move(self, bias: Tensor | None, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Bind other tensors of the same geometry."""
        product = self._product
        product.a, product.b, product.c = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if bias is not None:
            product.bias = bias.data_ptr()
        self.out, self._kept[:3] = out, (bias, a, b)

    def then_relu(self) -> None:
        """Apply a ReLU to the result."""
        self._product.relu = 1

    def then_mask(self, by: Tensor) -> bool:
        """Set the result to zero where `by` is not positive. Returns False if that is not supported."""
        by = _batched(by)
        if by.shape != self.out.shape or by.dtype != torch.float32 or not _in_order(by):
            return False
        product = self._product
        product.mask, product.mask_member, product.mask_row = by.data_ptr(), by.stride(0), by.stride(1)
        self._kept.append(by)
        return True


class Compiled:
    """A product by the library for tensors that it supports, with the arguments of torch's function.

    Args:
        function: torch's function; its arguments are (bias, if `adds`,) both factors and `out`.
        adds: whether there is a bias.
    """

    def __init__(self, function: Callable[..., Any], adds: bool) -> None:
        self.function, self.adds = function, adds
        self._bound: Bound | None = None
        self._given: tuple[Tensor, ...] = ()
        self._strides: list[tuple[int, ...]] = []

    def __call__(self, *args: Tensor, out: Tensor) -> None:
        given = *args, out
        if len(given) != len(self._given) or any(a is not b for a, b in zip(given, self._given, strict=True)):
            strides = [t.stride() for t in given]
            if self._bound is not None and strides == self._strides:
                self._bound.move(*self._batched(args, out))
            else:
                self._bound, self._strides = self.bound(args, out), strides
            self._given = given
        if self._bound is None:
            self.function(*args, out=out)
        else:
            self._bound()

    def bound(self, args: Any, out: Any) -> Bound | None:
        """The product of these tensors; None if the library does not support them."""
        found = library("product")
        if found is None or not all(isinstance(t, Tensor) for t in (*args, out)):
            return None
        bias, a, b, room = self._batched(args, out)
        if any(t.dtype != torch.float32 or t.device.type != "cpu" for t in (a, b, room)) or not _in_order(room):
            return None
        if bias is not None and (bias.dtype != torch.float32 or not _in_order(bias)):
            return None
        return Bound(found, bias, a, b, room)

    def _batched(self, args: tuple[Tensor, ...], out: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        a, b = args[-2:]
        room = _batched(out)
        bias = args[0].expand(out.shape) if self.adds else None
        return None if bias is None else _batched(bias), _batched(a), _batched(b), room


def _batched(matrix: Tensor) -> Tensor:
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix


def _in_order(matrix: Tensor) -> bool:
    """True if columns are adjacent in memory."""
    return matrix.stride(-1) == 1 or matrix.shape[-1] == 1
