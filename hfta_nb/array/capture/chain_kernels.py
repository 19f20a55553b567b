"""What a chain is called as in a program, and what it takes by the library and by torch, gradients included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.record import Call, Place
from hfta_nb.array.native import images
from hfta_nb.array.native.images import Images
from hfta_nb.array.strategy.formulations import COMPILED, Formulation, Operand
from hfta_nb.array.strategy.measuring import Choice, choose

_aten = torch.ops.aten
RESULTS = "out", "mean", "scale"
"""Of a norm, as the library knows them."""
_GRADIENTS = "dx", "weight_grad", "bias_grad"


@dataclass(frozen=True)
class Kernel:
    """What a call of the library stands for in a program, in place of an overload.

    Attributes:
        images: what it computes.
        backward: its gradients.
        names: of the arguments of the call, as the library knows them.
        rooms: the same of its results.
    """

    images: Images
    backward: bool
    names: tuple[str, ...]
    rooms: tuple[str, ...]

    @property
    def _schema(self) -> SimpleNamespace:
        norm = "group_norm" if self.images.groups else "batch_norm"
        parts = [norm, *(["relu"] if self.images.relu else []), *(["max_pool2d"] if self.images.pool else [])]
        return SimpleNamespace(name=" + ".join(parts), overload_name="", arguments=())

    def bind(self) -> Callable[..., None]:
        """What computes it, called with the tensors of a run and, by their names, rooms."""
        bound = images.Bound(self.images, self.backward)
        names = self.names

        def call(*tensors: Tensor | None, **rooms: Tensor | None) -> None:
            bound(**dict(zip(names, tensors, strict=True)), **rooms)

        return call


def chosen(forward: Call, backward: Call | None, device: torch.device) -> Choice | None:
    """How to compute a chain: torch's kernels one after another, or the library.

    Args:
        forward, backward: calls of the library; None for no gradients.
        device: of all tensors.

    Returns:
        None where that could not be measured.
    """
    names = dict(zip(forward.function.names, forward.args, strict=True))
    rooms = dict(zip(RESULTS, forward.results, strict=True))
    if backward is not None:
        names["grad"] = backward.args[0]
        rooms |= {n: p for n, p in zip(_GRADIENTS, backward.results, strict=True) if p is not None}
    shapes = {n: _operand(p) for n, p in names.items()}
    key = (forward if backward is None else backward).function
    torchs = partial(_by_torch, tuple(shapes), forward.function.images)
    own = Formulation(COMPILED, lambda _: _Own(tuple(shapes), forward, backward))
    named = {n: _operand(p) for n, p in rooms.items() if p is not None}
    return choose(_Named(key), torchs, list(shapes.values()), named, device, [own])


@dataclass(frozen=True)
class _Named:
    kernel: Kernel

    @property
    def _schema(self) -> Any:
        return self.kernel._schema

    def __str__(self) -> str:
        return f"{self.kernel._schema.name} {self.kernel.images}"


def _operand(place: Any) -> Any:
    return Operand(place.size, place.stride, place.dtype) if isinstance(place, Place) else place


class _Own:
    """Both calls of the library."""

    def __init__(self, names: tuple[str, ...], forward: Call, backward: Call | None) -> None:
        self._names, self._forward = names, forward.function
        self._backward = None if backward is None else backward.function
        self._calls = self._forward.bind(), None if self._backward is None else self._backward.bind()

    def __call__(self, *tensors: Tensor, **rooms: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self._names, tensors, strict=True)) | {n: rooms[n] for n in ("mean", "scale")}
        forward, backward = self._calls
        forward(*(given[n] for n in self._forward.names), **{n: rooms[n] for n in RESULTS})
        if backward is not None and self._backward is not None:
            made = {"dx": "out", "weight_grad": "weight_grad", "bias_grad": "bias_grad"}
            backward(*(given[n] for n in self._backward.names), **{made[n]: rooms[n] for n in _GRADIENTS if n in rooms})
        return tuple(rooms.values())


def _by_torch(names: tuple[str, ...], how: Images, *tensors: Tensor, **rooms: Tensor) -> tuple[Tensor, ...]:
    """Torch's kernels one after another; what the last one can't write to its room is copied there."""
    given = dict(zip(names, tensors, strict=True))
    x, weight, bias = given["x"], given["weight"], given["bias"]
    counts = x.shape[0], x.shape[1], math.prod(x.shape[2:]), how.groups
    if how.groups:
        found = _aten.native_group_norm(x, weight, bias, *counts, how.eps)
    else:
        running = given.get("running_mean"), given.get("running_var")
        found = torch.native_batch_norm(x, weight, bias, *running, True, how.momentum, how.eps)
    out, mean, scale = found
    indices = None
    if how.relu:
        out = torch.clamp_min(out, 0) if how.pool else torch.clamp_min(out, 0, out=rooms["out"])
    relu = out
    if how.pool:
        out, indices = _aten.max_pool2d_with_indices(relu, [2, 2], [2, 2])
    for name, value in zip(RESULTS, (out, mean, scale), strict=True):
        if rooms[name] is not value:
            rooms[name].copy_(value)
    if "grad" in given:
        grad = given["grad"]
        if how.pool:
            grad = _aten.max_pool2d_with_indices_backward(grad, relu, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
        if how.relu:
            grad = _aten.threshold_backward(grad, relu, 0)
        wanted = [True, *(name in rooms for name in _GRADIENTS[1:])]
        if how.groups:
            made = _aten.native_group_norm_backward(grad, x, mean, scale, weight, *counts, wanted)
        else:
            made = _aten.native_batch_norm_backward(grad, x, weight, None, None, mean, scale, True, how.eps, wanted)
        for name, value in zip(_GRADIENTS, made, strict=True):
            if name in rooms:
                rooms[name].copy_(value)
    return tuple(rooms.values())
