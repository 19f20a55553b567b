"""Linear layers, convolutions and embeddings: padded weights and entries are both zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from hfta_nb.engine.padded.member_numbers import Varied
from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.tags import full
from hfta_nb.engine.rules.rule_mode import arguments

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def _linear(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    s, t = full(x), full(weight)
    if len(t) != 2 or s[-1] != t[1] or (bias is not None and full(bias) != t[:1]):
        return NotImplemented
    return mode.result(function(*args, **kwargs), (*s[:-1], t[0]), zero=any(s[:-1]) and bias is not None)


def _convolution(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_CONV, args, kwargs)
    x, weight, bias, groups = given["input"], given["weight"], given.get("bias"), given.get("groups", 1)
    if varied({k: v for k, v in given.items() if k != "groups"}) or x.ndim != weight.ndim:
        return NotImplemented
    s, t = full(x), full(weight)
    if any(s[2:]) or s[0] or any(t[2:]) or (bias is not None and full(bias) != t[:1]):
        return NotImplemented
    if isinstance(groups, Varied):
        # Depthwise: as many groups as channels, and the same number of outputs per group in every member.
        each = {n / m for n, m in zip(t[0] or (weight.shape[0],), s[1] or (x.shape[1],), strict=False)}
        if groups.values != s[1] or t[1] or weight.shape[1] != 1 or t[0] is None or len(each) > 1:
            return NotImplemented
        given["groups"] = max(groups.values)
    elif groups != 1 or s[1] != t[1]:
        return NotImplemented
    return mode.result(function(**given), (None, t[0], *s[2:]))


def _transposed(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_TRANSPOSED, args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if varied(given) or x.ndim != weight.ndim or given.get("groups", 1) != 1:
        return NotImplemented
    s, t = full(x), full(weight)
    if any(s[2:]) or s[0] or any(t[2:]) or s[1] != t[0] or (bias is not None and full(bias) != t[1:2]):
        return NotImplemented
    return mode.result(function(*args, **kwargs), (None, t[1], *s[2:]))


def _embedding(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = arguments(names, args, kwargs)
    indices, weight = given["input"], given["weight"]
    index = given.get("padding_idx")
    # A negative index counts from the end, which is a different position in each member.
    if varied(given) or given.get("max_norm") is not None or any(full(indices)) or (index is not None and index < 0):
        return NotImplemented
    if full(weight)[0] is not None and index is not None:
        return NotImplemented
    return mode.result(function(*args, **kwargs), (*[None] * indices.ndim, full(weight)[1]))


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSES = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

RULES: dict[object, Rule] = {
    F.linear: _linear,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_TRANSPOSES, _transposed),
    F.embedding: _embedding,
}
