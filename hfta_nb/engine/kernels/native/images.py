"""Bindings of `images.c`: batch norm and group norm of images, with activation and max-pooling after it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.build import library

_NUMBERS = ("samples", "channels", "height", "width", "groups", "last", "turned", "relu", "pool", "fixed")
_POINTERS = (
    *("x", "grad", "weight", "bias", "out", "mean", "scale", "running_mean", "running_var"),
    *("weight_grad", "bias_grad", "room", "sums", "kinds"),
)
KINDS = {"relu": 1, "gelu": 2, "tanh": 3, "silu": 4}
"""The library's numbers of the activations that a channel may have."""


class _Images(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in _NUMBERS),
        *((n, ctypes.c_double) for n in ("eps", "momentum")),
        *((n, ctypes.c_void_p) for n in _POINTERS),
    ]


def usable() -> bool:
    """True if the library is available. If it is missing, it is compiled first."""
    return library("images") is not None


@dataclass(frozen=True)
class Images:
    """The images of a norm, and what follows it.

    Attributes:
        size: ``(N, C, H, W)``.
        groups: of channels; 0 for a batch norm.
        last: True if channels are adjacent in memory, False if the pixels of a channel are.
        relu, pool: whether a ReLU and a max-pooling with 2 x 2 windows follow.
        kinds: names of activations, separated by commas, if each of several members has one of them in place of a ReLU.
        members: whose channels lie one after another; each has as many.
        fixed: a batch norm by the running statistics, without gradients.
        eps: added to the variance.
        momentum: of the running statistics.
        turned: the pixels of the gradient are adjacent, although `last` is True.
    """

    size: tuple[int, int, int, int]
    groups: int
    last: bool
    relu: bool
    pool: bool
    eps: float
    momentum: float = 0.0
    turned: bool = False
    kinds: str = ""
    members: int = 1
    fixed: bool = False


def filled(channels: int) -> int:
    """Channels up to a full vector, of any width."""
    return (channels + 15) // 16 * 16


@cache
def _function(found: ctypes.CDLL, name: str) -> Callable[[object], None]:
    function = getattr(found, name)
    function.restype = None
    return function  # type: ignore[no-any-return]


class Bound:
    """A function of the library; called with tensors by their name in the library.

    The tensor `kinds`, where there is one, has for each channel its number in `KINDS`, int32, and zeros to `filled`.

    Args:
        images: the images.
        backward: compute gradients.
    """

    def __init__(self, images: Images, backward: bool) -> None:
        found = library("images")
        assert found is not None  # the caller has checked `usable`
        self._images = _Images(*images.size, images.groups, images.last, images.turned, images.relu, images.pool)
        self._images.fixed = images.fixed
        self._images.eps, self._images.momentum = images.eps, images.momentum
        found.hfta_images_room.restype = ctypes.c_ssize_t
        self._argument = ctypes.byref(self._images)
        rooms = (
            torch.empty(found.hfta_images_room(self._argument)),
            torch.empty(4 * images.size[1], dtype=torch.float64),
        )
        self._images.room, self._images.sums = (room.data_ptr() for room in rooms)
        self._call = _function(found, "hfta_images_backward" if backward else "hfta_images")
        self._kept: dict[str, Tensor | None] = {}
        self._rooms = rooms

    def __call__(self, **tensors: Tensor | None) -> None:
        kept, images = self._kept, self._images
        for name, tensor in tensors.items():
            if kept.get(name) is not tensor:
                kept[name] = tensor
                setattr(images, name, None if tensor is None else tensor.data_ptr())
        self._call(self._argument)
