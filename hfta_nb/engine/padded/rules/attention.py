"""Attention with different numbers of heads, or sizes of a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.tags import full
from hfta_nb.engine.rules.attention import opened
from hfta_nb.engine.rules.rule_mode import arguments

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _attention(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    tags = [full(t) for t in (query, key, value)]
    s, t, u = tags
    if varied(given) or given.get("dropout_p") or (mask is not None and any(full(mask))) or given.get("enable_gqa"):
        return NotImplemented
    if any(tag[-2] for tag in tags) or not s[:-2] == t[:-2] == u[:-2] or s[-1] != t[-1]:
        return NotImplemented
    if s[-1] is not None and given.get("scale") is None:
        # Torch divides by the root of the padded size of a head.
        factors = [(query.shape[-1] / n) ** 0.5 for n in s[-1]]
        given["query"] = query * mode.numbers(factors, query)
    return mode.result(function(**given), (*s[:-1], u[-1]))


def _multi_head(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with mode:  # the functions that it calls have their own rules
        return _OPEN(*args, **kwargs)


_OPEN = opened(F.multi_head_attention_forward)

RULES: dict[object, Rule] = {
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
}
