"""Pooling, padding and resizing, which treat each channel separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.rules.elementwise import named
from hfta_nb.engine.padded.tags import full


def _channels(spatial: int) -> Rule:
    """A rule for a function over the last `spatial` dimensions that maps zeros to zeros."""

    def rule(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs["input"]
        tag = full(x)
        if varied(args, kwargs) or any(tag[x.ndim - spatial :]):
            return NotImplemented
        out = function(*args, **kwargs)
        if not isinstance(out, Tensor) or out.ndim != x.ndim:
            return NotImplemented
        return mode.result(out, tag)

    return rule


def _pad(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, pad = args[0], args[1] if len(args) > 1 else kwargs["pad"]
    tag = full(x)
    if varied(args, kwargs) or any(tag[x.ndim - len(pad) // 2 :]):
        return NotImplemented
    return mode.result(function(*args, **kwargs), tag, zero=True)


def _interpolate(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs["input"]
    if varied(args, kwargs) or any(full(x)[2:]):
        return NotImplemented
    return mode.result(function(*args, **kwargs), full(x))


_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")

RULES: dict[object, Rule] = {
    **{f: _channels(d) for d in (1, 2, 3) for n in _POOLS for f in named(f"{n}{d}d")},
    F.pad: _pad,
    F.interpolate: _interpolate,
}
