"""Normalisation: by channel without changes, over features with statistics of the true entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.padded.member_numbers import Varied
from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.tags import full
from hfta_nb.engine.rules.rule_mode import arguments

_BATCH = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_INSTANCE = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")


def _by_channel(names: tuple[str, ...]) -> Rule:
    """A padded channel has mean 0, weight 0 and bias 0; therefore it and its running statistics stay zero."""

    def rule(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        given = arguments(names, args, kwargs)
        tag = full(given["input"])
        if varied(given) or len(tag) < 2 or tag[0] is not None or any(tag[2:]):
            return NotImplemented
        rest = [given.get(n) for n in names[1:5]]
        if any(t is not None and full(t) != tag[1:2] for t in rest):
            return NotImplemented
        return mode.result(function(*args, **kwargs), tag)

    return rule


def _layer_norm(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    x, weight, bias, eps = given["input"], given.get("weight"), given.get("bias"), given.get("eps", 1e-5)
    counts = _features(given, x, weight, bias)
    if counts is None:
        return NotImplemented
    number = mode.numbers(counts, x)
    centred = mode.filled(x - x.sum(-1, keepdim=True) / number, full(x), 0)
    variance = (centred * centred).sum(-1, keepdim=True) / number
    return mode.result(_scaled(centred * torch.rsqrt(variance + eps), weight, bias), full(x))


def _rms_norm(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    x, weight, eps = given["input"], given.get("weight"), given.get("eps")
    counts = _features(given, x, weight, None)
    if counts is None:
        return NotImplemented
    square = (x * x).sum(-1, keepdim=True) / mode.numbers(counts, x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return mode.result(_scaled(x * torch.rsqrt(square + eps), weight, None), full(x))


def _features(given: dict[str, Any], x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[int, ...] | None:
    """The true numbers of features, if the norm is over a padded last dimension only."""
    shape, tag = given["normalized_shape"], full(x)
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
    last = shape[-1] if isinstance(shape, list | tuple) and len(shape) == 1 else shape
    if not exact or not isinstance(last, Varied) or last.values != tag[-1] or any(tag[:-1]):
        return None
    if varied(given.get("eps")) or any(t is not None and full(t) != tag[-1:] for t in (weight, bias)):
        return None
    return tag[-1]


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


RULES: dict[object, Rule] = {
    F.batch_norm: _by_channel(_BATCH),
    F.instance_norm: _by_channel(_INSTANCE),
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}
