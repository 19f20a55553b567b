"""Runs a function once per member, with the member's slices and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.engine.rules.rule_mode import (
    Context,
    Disagreement,
    SharedWrite,
    function_name,
    memory_order,
    stored_as,
    without_gaps,
    writes_in_place,
)

RANDOM = "member by member, each with its own random numbers"


def member_by_member(context: Context, function: Callable[..., Any], args: Any, kwargs: Any, how: str = RANDOM) -> Any:
    """Call `function` once per member, with the member's slices and generators; differentiable.

    Raises:
        Disagreement: the members' values cannot be combined: different numbers or shapes.
    """
    context.note(function, how)
    with context.outside():
        return joined(context, each_member(context, function, args, kwargs, draws=how is RANDOM))


def each_member(
    context: Context, function: Callable[..., Any], args: Any, kwargs: Any, draws: bool = False
) -> list[Any]:
    """The results of the members. Requires `context.outside`.

    Args:
        draws: the function draws random numbers. On a GPU, which element gets which number depends on whether a
            tensor has gaps in memory, as a member's part of a grouped convolution's result has, and alone has not.
    """
    leaves, rebuild = flatten((args, kwargs))
    stacked = [context.stacked(v) if isinstance(v, Tensor) else v for v in leaves]
    results = []
    # Each plain module has its own generator; here all of them are in the same state.
    starts = [(v, v.get_state()) for v in leaves if isinstance(v, torch.Generator)]
    with context.generators.borrowed():
        for i, index in enumerate(context.indices):
            for generator, state in starts:
                generator.set_state(state)
            own = [v.select(0, i) if isinstance(v, Tensor) else v for v in stacked]
            if draws:
                pairs = zip(own, stacked, strict=True)
                own = [v.clone() if isinstance(v, Tensor) and gaps_of_others(v, whole) else v for v, whole in pairs]
            given, named = unflatten(rebuild, own)
            context.generators.enter(index)
            try:
                results.append(function(*given, **named))
            finally:
                context.generators.leave(index)
    return results


def gaps_of_others(own: Tensor, whole: Tensor) -> bool:
    """True if a member's part of a tensor on a GPU has gaps in memory, and the tensor has none: then they are other
    members' parts, or padding, which the plain module's tensor does not have."""
    return own.is_cuda and without_gaps(whole) and not without_gaps(own)


def joined(context: Context, results: list[Any]) -> Any:
    """The members' results as the model sees them: tensors with a hidden member axis, other values if all members
    agree."""
    parts = [flatten(r) for r in results]
    first, rebuild = parts[0]
    if any(len(leaves) != len(first) for leaves, _ in parts):
        raise Disagreement("members give results of different form")
    return unflatten(rebuild, [_together(context, list(v)) for v in zip(*(leaves for leaves, _ in parts), strict=True)])


def _together(context: Context, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if not all(isinstance(v, Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values):
            raise Disagreement("members give tensors of different shapes")
        stacked = torch.stack(values)
        return context.wrapped(stored_as(stacked, memory_order(first.unsqueeze(0))))
    if all(v is first for v in values):
        return first
    try:
        agree = all(type(v) is type(first) and bool(v == first) for v in values)
    except Exception:  # for example an array: values whose comparison fails count as different
        agree = False
    if not agree:
        raise Disagreement("members come to different values, on which the model's way depends")
    return first


def by_members(context: Context, function: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> Any:
    """Run a function that `vmap` has failed to run, member by member.

    Raises:
        Exception: the function's own error, if it fails for a single member as well.
        SharedWrite: it writes into a tensor that the members share.
    """
    leaves, _ = flatten((args, kwargs))
    if not any(isinstance(v, Tensor) and context.batched(v) for v in leaves):
        raise error
    target = kwargs.get("out", args[0] if args and writes_in_place(function) else None)
    if isinstance(target, Tensor) and not context.batched(target):
        raise SharedWrite(f"{function_name(function)} writes into a tensor that the members share") from error
    how = "member by member, as vmap can't run it"
    if target is None:
        try:
            return member_by_member(context, function, args, kwargs, how)
        except Disagreement:
            raise
        except Exception:
            raise error from None
    if function_name(function) in _RESHAPING:
        raise Disagreement(f"{function_name(function)} changes the shape of a tensor") from error
    context.note(function, how)
    with context.outside():
        each_member(context, function, args, kwargs)
    return target


_RESHAPING = ("t_", "transpose_", "swapaxes_", "squeeze_", "unsqueeze_", "as_strided_")
"""Functions that change a tensor's shape or strides but not its memory."""


def torch_kernel_per_member(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The rule for a function that runs as torch's own kernel, once per member."""
    return member_by_member(context, function, args, kwargs, "torch's kernel, once per member")
