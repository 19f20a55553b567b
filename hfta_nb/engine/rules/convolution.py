"""Convolutions: pointwise ones as batched matrix products, others as `vmap`'s grouped ones, stored like torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members.untraced import untraced
from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments, memory_order, stored_as

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_NAMES_TRANSPOSED = (*_NAMES[:5], "output_padding", "groups", "dilation")


def _convolution(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES if function in _POINTWISE else _NAMES_TRANSPOSED, args, kwargs)
    if function in _POINTWISE and _pointwise(context, given):
        context.note(function, "batched matrix product")
        with context.outside():
            return context.wrapped(_product(context, given["input"], given["weight"], given.get("bias")))
    last = _channels_last(context, given)
    out = _grouped(context, function, {**given, "input": _beside(context, given["input"])} if last else given)
    if not context.batched(out) or out.ndim < 4:
        return out
    order = (0, *range(2, out.ndim), 1) if last else tuple(range(out.ndim))
    with context.outside():
        return context.wrapped(stored_as(context.stacked(out), order))


def _channels_last(context: Context, given: dict[str, Any]) -> bool:
    """True if the plain convolution gives channels last: its images or weights are stored so."""
    x, weight = given.get("input"), given.get("weight")
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or x.ndim != weight.ndim or x.ndim < 4:
        return False
    if x.device.type == "cuda" and x.dtype == torch.float64:  # cuDNN has no channels last in float64
        return False
    last = (0, *range(2, x.ndim), 1)
    with context.outside():
        return any(memory_order(context.stacked(v)) == last for v in (x, weight))


def _beside(context: Context, x: Tensor) -> Tensor:
    """The members' images, stored with the channels of all members adjacent, so that a grouped convolution of a CPU
    takes them, and gives its result, without copies."""
    if x.device.type != "cpu" or not context.batched(x):
        return x
    with context.outside():
        whole = context.stacked(x)
        order = (1, *range(3, whole.ndim), 0, 2)
        return context.wrapped(whole.permute(order).contiguous().permute([order.index(i) for i in range(whole.ndim)]))


def _grouped(context: Context, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """`vmap`'s grouped convolution, for as many members at once as the library supports."""
    at_once = _at_once(context, function, given)
    if at_once >= context.members:
        context.note(function, "vmap, a grouped convolution")
        return function(**given)
    how = f"vmap, grouped convolutions of {at_once} members each, for more elements are too many"
    context.note(function, "one convolution per member" if _crosses_groups(function, given) else how)
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in given.items() if name not in tensors}
    axes = tuple(0 if context.batched(value) else None for value in tensors.values())

    def one(*values: Tensor) -> Any:
        return function(**dict(zip(tensors, values, strict=True)), **rest)

    with context.outside():
        stacked = [context.stacked(v) if context.batched(v) else v for v in tensors.values()]
        return context.wrapped(torch.vmap(one, axes, chunk_size=at_once)(*stacked))


def _at_once(context: Context, function: Callable[..., Any], given: dict[str, Any]) -> int:
    """How many members may be in one grouped convolution. A single member's images are as large as in its plain
    module."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    most = _most(given["input"].device)
    if most is None or not any(map(context.batched, tensors.values())):
        return context.members
    if _crosses_groups(function, given):
        return 1
    with context.outside(), untraced():
        there = {n: torch.empty(v.shape, dtype=v.dtype, device="meta") for n, v in tensors.items()}
        out = function(**{**given, **there})
    return int(max(1, most // max(1, out.numel(), given["input"].numel())))


def _crosses_groups(function: Callable[..., Any], given: dict[str, Any]) -> bool:
    """True if a grouped convolution on a GPU may multiply channels of other groups by zero.

    cuDNN's kernels for tensor cores do if the channels of a group do not fill their tiles: a member whose numbers are
    not finite would then spoil its neighbours. Depthwise convolutions are torch's own kernels.
    """
    x, weight, groups = given["input"], given["weight"], given.get("groups") or 1
    if x.device.type != "cuda" or x.dtype == torch.float64:
        return False
    depthwise = function in _POINTWISE and weight.shape[1] == 1
    if depthwise or weight.shape[0] // groups % _TILE == weight.shape[1] % _TILE == 0:
        return False
    return x.dtype != torch.float32 or "tf32" in matmul_precision.float32(x.device)


_TILE = 16
"""Channels: groups of multiples of them stay apart, groups of 2 and 8 do not (an H200, bfloat16; decision 40)."""


def _most(device: torch.device) -> int | None:
    """The most elements of a convolution's tensors; None for no limit.

    Most of cuDNN's kernels count elements with 32 bits. Beyond that, torch uses its own kernels, which are many times
    slower, or fails.
    """
    return 2**31 - 1 if device.type == "cuda" else None


def _pointwise(context: Context, given: dict[str, Any]) -> bool:
    """True for a linear map of the channels whose inputs and weights differ between members.

    False in float64, which is for comparisons: there a member gets the bits of the plain convolution.
    """
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if context.members < 2 or not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or x.ndim != weight.ndim:
        return False
    settings = (("stride", 1), ("padding", 0), ("groups", 1))
    plain = all(_all(given.get(name, value), value) for name, value in settings)
    own = context.batched(x) and context.batched(weight)
    fits = all(size == 1 for size in weight.shape[2:]) and x.shape[1] == weight.shape[1] and x.numel() > 0
    dtypes = {t.dtype for t in (x, weight, bias) if t is not None}
    if not (plain and own and fits and len(dtypes) == 1) or torch.float64 in dtypes:
        return False
    with context.outside():
        return memory_order(context.stacked(x))[-1] != 1  # channels last


def _all(value: Any, wanted: int) -> bool:
    return all(v == wanted for v in (value if isinstance(value, tuple | list) else (value,)))


def _product(context: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[M, N, O, ...]``, stored like the result of a grouped convolution over M times the channels."""
    whole, factors = context.stacked(x), context.stacked(weight)
    members, samples, channels, *space = whole.shape
    columns = whole.transpose(1, 2).reshape(members, channels, -1)
    rows = factors.reshape(members, -1, channels)
    if bias is None:
        out = torch.bmm(rows, columns)
    else:
        out = torch.baddbmm(context.stacked(bias).unsqueeze(-1), rows, columns)
    apart = out.view(members, -1, samples, *space).movedim(2, 0)
    return apart.contiguous().transpose(0, 1)


_POINTWISE = frozenset({F.conv1d, F.conv2d, F.conv3d})
RULES: dict[object, Rule] = dict.fromkeys((*_POINTWISE, F.conv_transpose2d, F.conv_transpose3d), _convolution)
