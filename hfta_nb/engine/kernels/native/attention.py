"""Bindings of `attention.c`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_NUMBERS = ("samples", "heads", "queries", "keys", "wide", "causal")
_TENSORS = 9
_BACKWARD = (5, 0, 1, 2, 3, 4)
"""Indices in the library's `TENSORS` of the tensors of a backward pass."""
LONGEST = 512
"""The most queries and keys: the scores of a head have to fit into cache."""


class _Attention(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in _NUMBERS),
        ("strides", ctypes.c_ssize_t * 3 * _TENSORS),
        ("tensors", ctypes.c_void_p * _TENSORS),
        ("room", ctypes.c_void_p),
        ("scale", ctypes.c_float),
    ]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("attention") is not None


class Bound:
    """Attention bound to certain tensors; a call computes it.

    Args:
        tensors: by their index in the library: ``[B, H, L or S, D]``, `logs` ``[B, H, L]``.
        causal: a query attends to keys up to its own position.
        scale: of the scores; None for 1 / sqrt(D).
    """

    def __init__(self, found: Any, tensors: dict[int, Tensor], causal: bool, scale: float | None) -> None:
        (samples, heads, queries, wide), keys = tensors[0].shape, tensors[1].shape[2]
        found.hfta_attention_room.restype = ctypes.c_ssize_t
        size = found.hfta_attention_room(*(ctypes.c_ssize_t(n) for n in (queries, keys, wide)))
        room = torch.empty(size, dtype=torch.float32)
        self._kept = [*tensors.values(), room]
        self._attention = _Attention(samples, heads, queries, keys, wide, causal)
        self._attention.room = room.data_ptr()
        self._attention.scale = 1 / math.sqrt(wide) if scale is None else scale
        for i, tensor in tensors.items():
            self._attention.tensors[i] = tensor.data_ptr()
            for axis, stride in enumerate(tensor.stride()[:3]):
                self._attention.strides[i][axis] = stride
        self._call = found.hfta_attention_backward if 5 in tensors else found.hfta_attention
        self._call.restype = None
        self._argument = ctypes.byref(self._attention)

    def __call__(self) -> None:
        self._call(self._argument)


def takes(sizes: Sequence[Sequence[int]], args: Sequence[Any], kwargs: Any) -> bool:
    """True if the library supports this attention.

    Args:
        sizes: of q, k and v.
        args, kwargs: of torch's function, after its tensors.
    """
    q, k, v = sizes
    dropout, *_ = (*args, 0.0)
    return (
        not dropout
        and kwargs.get("attn_mask") is None
        and len(q) == 4
        and q[:2] == k[:2] == v[:2]
        and k == v
        and q[3] == k[3]
        and min(q[2], k[2]) > 0
        and max(q[2], k[2]) <= LONGEST
    )


def forward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Like torch's attention for CPUs; writes to `out` and `logs`."""
    q, k, v, *rest = args
    causal = len(rest) > 1 and bool(rest[1])
    tensors = {0: q, 1: k, 2: v, 3: kwargs["out"], 4: kwargs["logs"]}
    return Bound(library("attention"), tensors, causal, kwargs.get("scale"))


def backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """The backward of `forward`; writes to `dq`, `dk` and `dv`."""
    tensors = dict(zip(_BACKWARD, args[:6], strict=True))
    tensors |= {6: kwargs["dq"], 7: kwargs["dk"], 8: kwargs["dv"]}
    return Bound(library("attention"), tensors, args[7], kwargs.get("scale"))
