"""Bindings of `adam.c`, an Adam step for all parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from hfta_nb.engine.comparison import compare
from hfta_nb.engine.kernels.native.build import library

_LISTS = ("values", "gradients", "means", "squares", "counts")
_NUMBERS = ("lr", "beta1", "beta2", "eps", "decay")


class _Adam(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in ("tensors", "apart")),
        *((n, ctypes.c_void_p) for n in ("sizes", *_LISTS)),
        *((n, ctypes.c_double) for n in _NUMBERS),
    ]


def usable(tensors: Sequence[Sequence[Tensor]]) -> bool:
    """True if the library is available and supports these tensors: contiguous float32 on a CPU, single-threaded.

    If the library is missing, it is compiled first.
    """
    return (
        torch.get_num_threads() == 1
        and all(
            t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous()
            for t in chain.from_iterable(tensors)
        )
        and _adam() is not None
    )


def _adam() -> ctypes.CDLL | None:
    found = library("adam")
    if found is not None and found._handle not in _right:
        _right[found._handle] = _is_right(found)
    return found if found is not None and _right[found._handle] else None


_right: dict[int, bool] = {}
"""By library, whether its results are correct."""
_ERROR = 8e-6
"""Tolerance relative to the largest value; the typical error in float32 is 1e-7."""


@torch.no_grad()
def _is_right(found: ctypes.CDLL) -> bool:
    """Compare a second step with the formula in float64."""
    value, gradient, mean = (torch.sin(torch.arange(40.0) * k) for k in (1.7, 2.3, 3.1))
    square, count = mean * mean, torch.tensor(2.0)
    lr, beta1, beta2, eps, decay = numbers = (0.1, 0.9, 0.99, 1e-3, 0.2)
    exact, g, m = value.double(), gradient.double() + decay * value.double(), mean.double()
    m = beta1 * m + (1 - beta1) * g
    below = (beta2 * square.double() + (1 - beta2) * g * g).div(1 - beta2**2).sqrt() + eps
    exact = exact - lr / (1 - beta1**2) * m / below
    Bound([[value], [gradient], [mean], [square]], [count], numbers, apart=False, found=found)()
    results = {"value": value.double(), "mean": mean.double()}
    return not compare(results, {"value": exact, "mean": m}, lambda _: _ERROR)


class Bound:
    """An Adam step bound to certain tensors; a call runs it.

    Args:
        tensors: values, gradients, means and squares; a list of all tensors for each.
        counts: the number of the step for each tensor; the caller increments it before the call.
        numbers: lr, betas, eps and weight decay.
        apart: decoupled weight decay, as in AdamW.
        found: the library; by default, the one that is `usable`.

    Source: Kingma and Ba, 2015, algorithm 1; Loshchilov and Hutter, 2019.
    """

    def __init__(
        self,
        tensors: Sequence[Sequence[Tensor]],
        counts: Sequence[Tensor],
        numbers: Sequence[float],
        apart: bool,
        found: ctypes.CDLL | None = None,
    ) -> None:
        found, size = found or _adam(), len(tensors[0])
        assert found is not None  # the caller has checked `usable`
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
