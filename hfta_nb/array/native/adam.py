"""The Adam of `adam.c`, bound to the tensors that it is about."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from hfta_nb.array.native.build import library

_LISTS = ("values", "gradients", "means", "squares", "counts")
_NUMBERS = ("lr", "beta1", "beta2", "eps", "decay")


class _Adam(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in ("tensors", "apart")),
        *((n, ctypes.c_void_p) for n in ("sizes", *_LISTS)),
        *((n, ctypes.c_double) for n in _NUMBERS),
    ]


def usable(tensors: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the library is there, and made for these tensors: float32 on a CPU, without gaps, on one thread.

    If it is not there, it is compiled in the background, for processes to come.
    """
    return (
        torch.get_num_threads() == 1
        and all(
            t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous()
            for t in chain.from_iterable(tensors)
        )
        and library("adam", wait=False) is not None
    )


class Bound:
    """A step of certain tensors; called, it is done.

    Args:
        tensors: values, gradients, means and squares, of all tensors each.
        counts: which step it is, a number per tensor, which the caller counts up before.
        numbers: lr, betas, eps and weight decay.
        apart: weight decay as AdamW has it.

    Source: Kingma and Ba, 2015, algorithm 1; Loshchilov and Hutter, 2019.
    """

    def __init__(
        self, tensors: Sequence[Sequence[Tensor]], counts: Sequence[Tensor], numbers: Sequence[float], apart: bool
    ) -> None:
        found, size = library("adam", wait=False), len(tensors[0])
        assert found is not None  # it is usable
        pointers = ctypes.c_void_p * size
        lists = [pointers(*(t.data_ptr() for t in column)) for column in (*tensors, counts)]
        sizes = (ctypes.c_ssize_t * size)(*(t.numel() for t in tensors[0]))
        self._kept = [lists, sizes, list(map(list, tensors)), list(counts)]
        places = [ctypes.addressof(sizes), *map(ctypes.addressof, lists)]
        self._adam = _Adam(size, apart, *places, *numbers)
        self._call = found.hfta_adam
        self._call.restype = None
        self._argument = ctypes.byref(self._adam)

    def __call__(self) -> None:
        self._call(self._argument)
