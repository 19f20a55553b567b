"""Whatever draws random numbers runs member by member, each with its own generators: it draws what it would alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from hfta_nb.array.rules.base import Context, Rule, arguments, function_name
from hfta_nb.errors import FusionError


def member_by_member(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `function` once per member, with the member's slices and the member's generators; differentiable."""
    context.note(function, "member by member, each with its own random numbers")
    leaves, spec = pytree.tree_flatten((args, kwargs))
    with context.outside():
        stacked = [context.stacked(v).unbind(0) if isinstance(v, Tensor) else v for v in leaves]
        results = []
        with context.generators.borrowed():
            for i in range(context.members):
                own = [v[i] if isinstance(leaf, Tensor) else leaf for v, leaf in zip(stacked, leaves, strict=True)]
                given, named = pytree.tree_unflatten(own, spec)
                context.generators.enter(context.first + i)
                results.append(function(*given, **named))
                context.generators.leave(context.first + i)
        return pytree.tree_map(lambda *v: _joined(context, v), *results)


def _joined(context: Context, values: tuple[Any, ...]) -> Any:
    return context.wrapped(torch.stack(values)) if isinstance(values[0], Tensor) else values[0]


def _random_in_place(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not context.batched(target):
        # M different draws can't go into one shared tensor.
        raise FusionError(
            "draws into a tensor that the members share",
            where=function_name(function),
            remedy="the array falls back to running its members one after another",
        )
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
        return member_by_member(context, function, args, kwargs)
    return function(*args, **kwargs)


def _when(position: int, name: str) -> Rule:
    """Random only where an argument (a dropout probability) is not zero."""

    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        value = args[position] if len(args) > position else kwargs.get(name, 0.0)
        return member_by_member(context, function, args, kwargs) if value else function(*args, **kwargs)

    return rule


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
    F.scaled_dot_product_attention: _when(4, "dropout_p"),
    F.multi_head_attention_forward: _when(10, "dropout_p"),
}
