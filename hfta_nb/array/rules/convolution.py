"""Convolutions: pointwise ones as batched matrix products, others `vmap`'s grouped ones, stored as torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.array.rules.base import Context, Rule, arguments, memory_order, stored_as

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _convolution(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    if function in _POINTWISE and _pointwise(context, given):
        context.note(function, "batched matrix product")
        with context.outside():
            return context.wrapped(_product(context, given["input"], given["weight"], given.get("bias")))
    context.note(function, "vmap, a grouped convolution")
    out = function(*args, **kwargs)
    tensors = [v for v in (given.get("input"), given.get("weight")) if isinstance(v, Tensor)]
    if not context.batched(out) or out.ndim < 4:
        return out
    last = (0, *range(2, out.ndim), 1)  # channels last
    with context.outside():
        wanted = any(v.ndim == out.ndim and memory_order(context.stacked(v)) == last for v in tensors)
        order = last if wanted else tuple(range(out.ndim))
        return context.wrapped(stored_as(context.stacked(out), order))


def _pointwise(context: Context, given: dict[str, Any]) -> bool:
    """Whether this is a linear map of the channels, with inputs and weights of the members' own.

    Not in float64, which is for comparisons: there a member gets the bits of the plain convolution.
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
    """``[M, N, O, ...]``, in memory as a grouped convolution over M times the channels leaves it."""
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
