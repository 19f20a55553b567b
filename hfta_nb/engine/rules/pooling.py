"""Pooling: the members are concatenated along the channels if they are stored so, otherwise along the batch, so that
torch's own kernels run once for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule


def _pool(axes: int) -> Rule:
    """The rule for a function over `axes` spatial axes, with or without a batch before the channels."""

    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not context.batched(x) or x.ndim not in (axes + 1, axes + 2):
            return function(*args, **kwargs)
        with context.outside():
            whole = context.stacked(x)
            among_channels = x.ndim == axes + 2 and whole.stride(0) == whole.shape[2] * whole.stride(2)
            together = whole.transpose(0, 1).flatten(1, 2) if among_channels else whole.flatten(0, -axes - 2)
            rest = {k: v for k, v in kwargs.items() if k != "input"}
            out = function(together, *args[1:], **rest)
            if among_channels:
                parts = [t.view(len(t), *whole.shape[0:3:2], *t.shape[2:]).transpose(0, 1) for t in _several(out)]
            else:
                parts = [t.view(*whole.shape[: -axes - 1], *t.shape[1:]) for t in _several(out)]
            wrapped = tuple(context.wrapped(t) for t in parts)
        context.note(function, "the members beside each other, in the channels or in the batch")
        return wrapped if isinstance(out, tuple) else wrapped[0]

    return rule


def _several(out: Any) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


_FUNCTIONS = {
    1: (F.avg_pool1d, F.max_pool1d, F.max_pool1d_with_indices, F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
    2: (F.avg_pool2d, F.max_pool2d, F.max_pool2d_with_indices, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
    3: (F.avg_pool3d, F.max_pool3d, F.max_pool3d_with_indices, F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
}
_ALSO = {
    1: (torch.max_pool1d, torch.adaptive_avg_pool1d, F.adaptive_max_pool1d_with_indices),
    2: (torch.max_pool2d, F.adaptive_max_pool2d_with_indices),
    3: (torch.max_pool3d, F.adaptive_max_pool3d_with_indices),
}

RULES: dict[object, Rule] = {
    function: _pool(axes) for table in (_FUNCTIONS, _ALSO) for axes, group in table.items() for function in group
}
