"""Functions of single entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.padded.member_numbers import value_of
from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.tags import box, full, tag_of, widened
from hfta_nb.engine.rules.member_by_member import gaps_of_others

_INSIDE = 0.5
"""The value put into the padding for a function that is not defined at zero: its value and slope are finite there."""


def named(*names: str) -> Iterator[Any]:
    """The functions with these names in `torch`, `torch.nn.functional` and `torch.Tensor`."""
    for name in names:
        for home in (torch, F, Tensor):
            if hasattr(home, name):
                yield getattr(home, name)


def _keeps_zero(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs.get("input")
    if not isinstance(x, Tensor) or tag_of(x) is None or varied(args, kwargs) or _others(args[1:], kwargs, x):
        return NotImplemented
    return mode.result(function(*args, **kwargs), tag_of(x))


def _others(args: Any, kwargs: Any, x: Tensor) -> bool:
    return any(isinstance(v, Tensor) and v is not x for v in [*args, *kwargs.values()])


def _elsewhere(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs.get("input")
    if not isinstance(x, Tensor) or tag_of(x) is None or varied(args, kwargs) or _others(args[1:], kwargs, x):
        return NotImplemented
    if function.__name__.endswith("_") or kwargs.get("inplace"):
        return NotImplemented
    rest = {k: v for k, v in kwargs.items() if k != "input"}
    if not x.is_floating_point():
        return mode.result(function(x, *args[1:], **rest), tag_of(x), zero=True)
    return mode.result(function(mode.filled(x, tag_of(x), _INSIDE), *args[1:], **rest), tag_of(x), zero=True)


def _dropout(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Each member draws its masks at its true sizes and rate; outside of training nothing is drawn."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    x, p = given["input"], given.get("p", 0.5)
    if not given.get("training", given.get("train", True)):
        return x
    context = mode.context
    if context.fast_rng or not context.batched(x):
        return NotImplemented
    context.note(function, "member by member, each with its own random numbers, rate and size")
    with context.outside():
        stacked, results = context.stacked(x), []
        with context.generators.borrowed():
            for row, index in enumerate(context.indices):
                own = narrowed(stacked[row], box(x.shape, tag_of(x), row), 0)
                if gaps_of_others(own, stacked[row]):
                    own = own.clone()
                context.generators.enter(index)
                results.append(widened(function(own, value_of(p, row), True), x.shape, 0))
                context.generators.leave(index)
        out = mode.result(context.wrapped(torch.stack(results)), tag_of(x))
    if given.get("inplace"):
        x.copy_(out)
        return x
    return out


def _prelu(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, weight = args
    if x.ndim < 2 or (weight.numel() > 1 and full(x)[1] != full(weight)[0]):
        return NotImplemented
    return mode.result(function(x, weight), tag_of(x))


_KEEP = (
    *("relu", "relu_", "relu6", "tanh", "tanh_", "gelu", "silu", "mish", "elu", "celu", "selu", "leaky_relu"),
    *("hardswish", "hardshrink", "softshrink", "softsign", "tanhshrink", "neg", "negative", "abs", "sin", "square"),
    *("asinh", "atan", "erf", "expm1", "log1p", "floor", "ceil", "round", "trunc", "frac", "sinh", "asin", "tan"),
    *("clone", "detach", "contiguous", "to", "float", "double", "half", "bfloat16", "type", "type_as", "sign"),
    *("nan_to_num", "cpu", "cuda", "int", "long", "alias", "relu6_", "requires_grad_", "zero_", "sgn"),
)
_ELSEWHERE = (
    *("sigmoid", "exp", "exp2", "softplus", "logsigmoid", "hardsigmoid", "hardtanh", "cos", "cosh", "log", "log2"),
    *("log10", "sqrt", "rsqrt", "reciprocal", "erfc", "acos", "threshold", "clamp", "clip", "clamp_min", "clamp_max"),
    *("logical_not", "isnan", "isinf", "isfinite", "bool", "digamma", "lgamma", "sinc", "logit"),
)

RULES: dict[object, Rule] = {
    **dict.fromkeys(named(*_KEEP), _keeps_zero),
    **dict.fromkeys(named(*_ELSEWHERE), _elsewhere),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout), _dropout),
    **dict.fromkeys(named("prelu"), _prelu),
}
