"""The calls that replace a chain in a program, and their times compared with torch's kernels, gradients included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native import images
from hfta_nb.engine.kernels.native.images import Images
from hfta_nb.engine.kernels.strategy.autotune import Choice, choose
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, KernelVariant, Operand
from hfta_nb.engine.replay.fused_kernel import FusedKernel
from hfta_nb.engine.replay.trace import BufferView, Instruction
from hfta_nb.engine.rules.by_kind import names_of

_aten = torch.ops.aten
RESULTS = "out", "mean", "scale"
"""Results of a norm, by their names in the library."""
CHOSEN = "chosen"
"""The argument that says which members have which activation; see `by_kind`."""
_ENOUGH = 2**18
"""Entries of images on which ways are compared, to take little time: theirs is proportional to them."""
_GRADIENTS = "dx", "weight_grad", "bias_grad"


@dataclass(frozen=True)
class Kernel(FusedKernel):
    """A call of the library.

    Attributes:
        images: the images.
        backward: compute gradients.
        names: of the arguments of the call in the library.
        buffers: of its results in the library.
    """

    images: Images
    backward: bool
    names: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def _schema(self) -> SimpleNamespace:
        norm, how = "group_norm" if self.images.groups else "batch_norm", self.images
        middle = "relu" if how.relu else how.kinds.replace(",", " or ")
        parts = [norm, *([middle] if middle else []), *(["max_pool2d"] if how.pool else [])]
        return SimpleNamespace(name=" + ".join(parts), overload_name="", arguments=())

    def bind(self) -> Callable[..., None]:
        """The function that computes it, called with the tensors of a run and, by name, memory for the results."""
        bound = images.Bound(self.images, self.backward)
        names = self.names
        if self.images.kinds:
            kinds = _Kinds(self.images)

            def by_kind(*tensors: Any, **buffers: Tensor | None) -> None:
                *rest, chosen = tensors
                bound(**dict(zip(names[:-1], rest, strict=True)), **buffers, kinds=kinds(chosen))

            return by_kind

        def call(*tensors: Tensor | None, **buffers: Tensor | None) -> None:
            bound(**dict(zip(names, tensors, strict=True)), **buffers)

        return call


class _Kinds:
    """The activation of each channel, which may change from run to run."""

    def __init__(self, how: Images) -> None:
        self._kinds, self._each = how.kinds.split(","), how.size[1] // how.members
        self._names: list[str] = []
        self._numbers = torch.zeros(images.filled(how.size[1]), dtype=torch.int32)

    def __call__(self, chosen: Sequence[Tensor]) -> Tensor:
        """The numbers of the library; see `by_kind` for `chosen`."""
        names = names_of(chosen, self._kinds)
        if names != self._names:
            self._names = names
            numbers = torch.tensor([images.KINDS[name] for name in names], dtype=torch.int32)
            self._numbers[: len(names) * self._each] = numbers.repeat_interleave(self._each)
        return self._numbers


def chosen(forward: Instruction, backward: Instruction | None, device: torch.device) -> Choice | None:
    """The faster way to compute a chain: torch's kernels in sequence, or the library.

    Args:
        forward, backward: calls of the library; None for no gradients.
        device: of all tensors.

    Returns:
        None if the times could not be measured.
    """
    x = forward.args[0]
    forward, backward = _shortened(forward, x), None if backward is None else _shortened(backward, x)
    names = dict(zip(forward.function.names, forward.args, strict=True))
    names.pop(CHOSEN, None)  # for the measurement, members have their kinds in turn
    buffers = dict(zip(RESULTS, forward.results, strict=True))
    if backward is not None:
        names["grad"] = backward.args[0]
        buffers |= {n: p for n, p in zip(_GRADIENTS, backward.results, strict=True) if p is not None}
    shapes = {n: _operand(p) for n, p in names.items()}
    requested = tuple(n for n in _GRADIENTS if n in buffers)
    torchs = partial(_by_torch, tuple(shapes), forward.function.images, requested)
    # By running statistics, mean and scale are empty.
    made = {n: _operand(p) for n, p in buffers.items() if p is not None and 0 not in p.size}
    own = KernelVariant(COMPILED, lambda _: _Own(tuple(shapes), made, forward, backward))
    named = _Named((forward if backward is None else backward).function, requested)
    return choose(named, torchs, list(shapes.values()), {}, device, [own])


def _shortened(call: Instruction, x: BufferView) -> Instruction:
    """A call of the library on as few samples as tell its speed; a group norm, with statistics by sample, stays."""
    if call.function.images.groups:
        return call
    samples, how = x.size[0], call.function.images
    fewer = max(1, min(samples, _ENOUGH * samples // math.prod(x.size)))

    def short(place: Any) -> Any:
        image = isinstance(place, BufferView) and len(place.size) == len(x.size)
        return place._replace(size=(fewer, *place.size[1:])) if image else place

    number, channels, height, width = how.size  # pixels of all samples may be one sample's
    size = (fewer, channels, height, width) if number == samples else (1, channels, height, width // samples * fewer)
    function = replace(call.function, images=replace(how, size=size))
    return replace(call, function=function, args=[short(a) for a in call.args], results=tuple(map(short, call.results)))


@dataclass(frozen=True)
class _Named:
    kernel: Kernel
    requested: tuple[str, ...]

    @property
    def _schema(self) -> Any:
        return self.kernel._schema

    def __str__(self) -> str:
        return f"{self.kernel._schema.name} {self.kernel.images} {self.requested}"


def _operand(place: Any) -> Any:
    return place.operand if isinstance(place, BufferView) else place


class _Own:
    """Both calls of the library, with memory for results of these geometries."""

    def __init__(
        self, names: tuple[str, ...], buffers: Mapping[str, Operand], forward: Instruction, backward: Instruction | None
    ) -> None:
        self._names, self._forward = names, forward.function
        self._chosen = _in_turn(forward.function.images)
        self._backward = None if backward is None else backward.function
        self._calls = self._forward.bind(), None if self._backward is None else self._backward.bind()
        self._buffers = {n: torch.empty_strided(r.size, r.stride, dtype=r.dtype) for n, r in buffers.items()}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        buffers = self._buffers
        given: dict[str, Any] = dict(zip(self._names, tensors, strict=True)) | {n: buffers.get(n) for n in RESULTS[1:]}
        given[CHOSEN] = self._chosen
        if self._forward.images.fixed:
            given["running_var"] = given["running_var"].abs()
        forward, backward = self._calls
        forward(*(given[n] for n in self._forward.names), **{n: buffers.get(n) for n in RESULTS})
        if backward is not None and self._backward is not None:
            made = {"dx": "out", "weight_grad": "weight_grad", "bias_grad": "bias_grad"}
            backward(
                *(given[n] for n in self._backward.names), **{made[n]: buffers[n] for n in _GRADIENTS if n in buffers}
            )
        return tuple(buffers.values())


def _in_turn(how: Images) -> list[Tensor]:
    """Which members have which activation, if they have them in turn."""
    members, kinds = torch.arange(how.members), how.kinds.count(",") + 1
    return [members % kinds == number for number in range(kinds)]


def _apart(x: Tensor, how: Images) -> Tensor:
    """Images of all members' channels as ``[M, N, C, ...]``."""
    return x.view(len(x), how.members, -1, *x.shape[2:]).transpose(0, 1)


def _together(x: Tensor) -> Tensor:
    """``[M, N, C, ...]`` as images of all members' channels."""
    return x.transpose(0, 1).flatten(1, 2)


def _by_torch(names: tuple[str, ...], how: Images, requested: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Torch's kernels in sequence: the results, and the gradients that are needed."""
    given = dict(zip(names, tensors, strict=True))
    x, weight, bias = given["x"], given["weight"], given["bias"]
    counts = x.shape[0], x.shape[1], math.prod(x.shape[2:]), how.groups
    if how.groups:
        out, mean, scale = _aten.native_group_norm(x, weight, bias, *counts, how.eps)
    else:
        # What measures draws numbers of both signs.
        running = given.get("running_mean"), given["running_var"].abs() if how.fixed else given.get("running_var")
        out, mean, scale = torch.native_batch_norm(x, weight, bias, *running, not how.fixed, how.momentum, how.eps)
    before, chosen = _apart(out, how), _in_turn(how)
    if how.kinds:
        out = _together(torch.ops.hfta_nb.by_kind(before, chosen, how.kinds))
    relu = out = torch.clamp_min(out, 0) if how.relu else out
    indices = None
    if how.pool:
        out, indices = _aten.max_pool2d_with_indices(relu, [2, 2], [2, 2])
    if "grad" not in given:
        return (out,) if how.fixed else (out, mean, scale)
    grad = given["grad"]
    if how.pool:
        grad = _aten.max_pool2d_with_indices_backward(grad, relu, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    if how.relu:
        grad = _aten.threshold_backward(grad, relu, 0)
    if how.kinds:
        grad = _together(torch.ops.hfta_nb.by_kind_backward(_apart(grad, how), before, chosen, how.kinds))
    wanted = [name in requested for name in _GRADIENTS]
    if how.groups:
        made = _aten.native_group_norm_backward(grad, x, mean, scale, weight, *counts, wanted)
    else:
        made = _aten.native_batch_norm_backward(grad, x, weight, None, None, mean, scale, True, how.eps, wanted)
    return out, mean, scale, *(g for g, yes in zip(made, wanted, strict=True) if yes)
