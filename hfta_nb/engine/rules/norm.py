"""Norms: batch and group norm as one norm over M times the channels; others round like torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments, memory_order, stored_as

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _batch_norm(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    tensors = [given.get(name) for name in _NAMES[:5]]
    if given["input"].ndim < 2 or not any(isinstance(t, Tensor) and context.batched(t) for t in tensors):
        return function(*args, **kwargs)
    context.note(function, "one batch norm over the channels of all members")
    with context.outside():
        x = context.stacked(given["input"])
        rest = [None if t is None else context.stacked(t) for t in tensors[1:]]
        members, samples, channels = x.shape[:3]
        together = x.transpose(0, 1).reshape(samples, members * channels, *x.shape[3:])
        # Contiguous: torch's CPU kernel treats a strided weight (one channel of each member) as contiguous.
        flat = [None if t is None else t.reshape(-1).contiguous() for t in rest]
        out = function(together, *flat, **{k: v for k, v in given.items() if k in _NAMES[5:]})
        for statistics, changed in zip(rest[:2], flat[:2], strict=True):
            if statistics is not None and changed is not None and changed.data_ptr() != statistics.data_ptr():
                # `.data`: torch's kernel writes them without autograd noticing, so that an earlier call can still be
                # differentiated.
                statistics.data.copy_(changed.view_as(statistics))
        apart = out.view(samples, members, *x.shape[2:]).transpose(0, 1)
        return context.wrapped(stored_as(apart, memory_order(x)))


def _group_norm(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_GROUP_NAMES, args, kwargs)
    x, groups, weight, bias = given["input"], given["num_groups"], given.get("weight"), given.get("bias")
    batched = any(isinstance(t, Tensor) and context.batched(t) for t in (x, weight, bias))
    if not batched or x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        return function(*args, **kwargs)
    context.note(function, "one group norm over the channels of all members")
    with context.outside():
        whole = context.stacked(x)
        members, samples, channels = whole.shape[:3]
        together = whole.transpose(0, 1).reshape(samples, members * channels, *whole.shape[3:])
        flat = [None if t is None else context.stacked(t).reshape(-1) for t in (weight, bias)]
        out = function(together, members * groups, *flat, **{k: v for k, v in given.items() if k == "eps"})
        apart = out.view(samples, members, *whole.shape[2:]).transpose(0, 1)
        return context.wrapped(stored_as(apart, memory_order(whole)))


_GROUP_NAMES = ("input", "num_groups", "weight", "bias", "eps")
_AFFINE = {
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "normalized_shape", "weight", "eps"),
    F.instance_norm: (
        *("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
    ),
}


def _low_precision(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """In 16 bits, torch's kernel rounds once at the end and returns the input's dtype; `vmap` also rounds in
    between."""
    given = arguments(_AFFINE[function], args, kwargs)
    x = given["input"]
    kept = given.get("running_mean")
    if x.dtype not in (torch.bfloat16, torch.float16) or (kept is not None and kept.dtype != torch.float32):
        context.note(function, "vmap")
        return function(*args, **kwargs)
    context.note(function, "vmap, in float32, rounded once")
    whole = {k: v.float() if isinstance(v, Tensor) else v for k, v in given.items()}
    with torch.autocast(x.device.type, enabled=False):
        return function(**whole).to(x.dtype)


RULES: dict[object, Rule] = {
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    **dict.fromkeys(_AFFINE, _low_precision),
}
