"""Functions that draw random numbers run member by member with each member's generators, as in the plain module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.member_by_member import member_by_member
from hfta_nb.engine.rules.rule_mode import Context, Rule, SharedWrite, arguments, function_name


def _random_in_place(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not context.batched(target):
        raise SharedWrite(f"{function_name(function)} draws into a tensor that the members share")
    drawn = member_by_member(context, _out_of_place(function), args, kwargs)
    target.copy_(drawn)
    return target


def _out_of_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def draw(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(torch.empty_like(target), *args, **kwargs)

    draw.__name__ = function_name(function)
    return draw


def _dropout(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("input", "p", "training"), args, kwargs)
    if given.get("training", given.get("train", True)):
        if given.get("p") == 0:  # nothing is drawn
            return given["input"]
        return member_by_member(context, function, args, kwargs)
    return function(*args, **kwargs)


_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
)
_RANDOM = (
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.poisson),
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.multinomial, torch.binomial),
    *(Tensor.bernoulli, Tensor.multinomial, F.gumbel_softmax, F.rrelu, torch.rrelu),
    *(F.fractional_max_pool2d, F.fractional_max_pool3d),
    *(F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices),
)
_IN_PLACE = (
    *(Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_, Tensor.exponential_, Tensor.geometric_),
    *(Tensor.log_normal_, Tensor.cauchy_, Tensor.random_),
)

RULES: dict[object, Rule] = {
    **dict.fromkeys(_DROPOUTS, _dropout),
    **dict.fromkeys(_RANDOM, member_by_member),
    **dict.fromkeys(_IN_PLACE, _random_in_place),
}
