"""Convolutions: `vmap`'s grouped ones, stored as torch's own kernels store theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.array.rules.base import Context, Rule, memory_order, stored_as


def _convolution(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    context.note(function, "vmap, a grouped convolution")
    out = function(*args, **kwargs)
    given = [v for v in (*args[:2], kwargs.get("input"), kwargs.get("weight")) if isinstance(v, Tensor)]
    if not context.batched(out) or out.ndim < 4:
        return out
    last = (0, *range(2, out.ndim), 1)  # channels last
    with context.outside():
        wanted = any(v.ndim == out.ndim and memory_order(context.stacked(v)) == last for v in given)
        order = last if wanted else tuple(range(out.ndim))
        return context.wrapped(stored_as(context.stacked(out), order))


RULES: dict[object, Rule] = dict.fromkeys((F.conv2d, F.conv3d, F.conv_transpose2d, F.conv_transpose3d), _convolution)
