"""Attention: the members are concatenated along the batch, so that torch's own kernels run once for all."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.member_by_member import member_by_member
from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _attention(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    if given.get("dropout_p"):
        return member_by_member(context, function, args, kwargs)
    tensors = [given["query"], given["key"], given["value"]]
    mask = given.get("attn_mask")
    query = tensors[0]
    batches = {t.shape[0] for t in tensors}
    plain = not any(context.batched(t) for t in [*tensors, *([] if mask is None else [mask])])
    if plain or query.ndim < 3 or any(t.ndim != query.ndim for t in tensors) or len(batches) > 1:
        return function(*args, **kwargs)
    context.note(function, "the members beside each other in the batch")
    with context.outside():
        stacked = [context.stacked(t) for t in tensors]
        batch = stacked[0].shape[1]
        folded = [t.reshape(-1, *t.shape[2:]) for t in stacked]
        given["attn_mask"] = None if mask is None else _fold_mask(context, mask, query.ndim, batch)
        rest = {k: v for k, v in given.items() if k not in _NAMES[:3]}
        out: Tensor = function(*folded, **rest)
        return context.wrapped(out.view(context.members, batch, *out.shape[1:]))


def _fold_mask(context: Context, mask: Tensor, ndim: int, batch: int) -> Tensor:
    if not context.batched(mask) and mask.ndim < ndim:
        return mask  # the same for the whole batch
    value = context.stacked(mask)
    value = value.reshape(value.shape[0], *[1] * (ndim - mask.ndim), *value.shape[1:])
    value = value.expand(value.shape[0], batch, *value.shape[2:])
    return value.reshape(-1, *value.shape[2:])


def _multi_head(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with context.modes[0]:  # the functions that it calls have their own rules
        return _OPEN(*args, **kwargs)


def opened(function: Any) -> Any:
    """The function without its check for a function mode, so that the mode sees the functions that it calls."""
    names = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no)
    scope = {**function.__globals__, **names}
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no(*args: Any) -> bool:
    return False


_OPEN = opened(F.multi_head_attention_forward)

RULES: dict[object, Rule] = {
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
}
