"""Runs groups of members with equal sizes, each group at its true sizes, and combines the results.

This is exact for every function, whatever it does with its sizes: the members of a group see tensors without padding.
It costs one call per group, where a padding rule costs one call for all members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.members.tree import Rebuild, flatten
from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.padded.member_numbers import value_of, vary
from hfta_nb.engine.padded.tags import Tag, box, full, rows_of, tag_of, tagged, views, widened
from hfta_nb.engine.rules import Context, Disagreement, SharedWrite, rule_mode
from hfta_nb.engine.rules.rule_mode import function_name, vmap_level, writes_in_place
from hfta_nb.errors import FusionError


class Running(Protocol):
    """A mode that runs members together; see `PaddedMode`."""

    context: Context


_modes: ContextVar[tuple[Running, ...]] = ContextVar("_modes", default=())
"""The modes that this thread runs in, the active one last."""


def begin(mode: Running) -> None:
    """Make this mode the active one, until `end`."""
    _modes.set((*_modes.get(), mode))


def end() -> None:
    """Reactivate the previous mode."""
    _modes.set(_modes.get()[:-1])


def running() -> Running:
    """The active mode."""
    if not _modes.get():
        raise FusionError(
            "a module that stands for members of different architecture was called by itself", where="fuse"
        )
    return _modes.get()[-1]


class PerMemberFunction:
    """A plain function in a module's attribute (for example an activation) that differs between members."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.values = tuple(functions)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return by_groups(running(), differing_function, (self, *args), kwargs)


def differing_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


_WRITES_STATISTICS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


@dataclass
class Part:
    """The result of some members.

    Attributes:
        rows: their positions in the block.
        leaves: of the result; tensors are ``[len(rows), ...]``.
        tags: per leaf, of the padding that its tensor still has, in the order of `rows`.
    """

    rows: list[int]
    leaves: list[Any]
    tags: list[Tag | None]
    rebuild: Rebuild


def by_groups(mode: Running, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `function` for each group of members with the same true sizes and numbers.

    Raises:
        Disagreement: the members' results cannot be combined.
        SharedWrite: it writes into a tensor that the members share.
    """
    if function is Tensor.view:
        function = Tensor.reshape  # true sizes are narrow views of the padded tensor
    if writes_in_place(function):
        return _written(mode, function, args, kwargs)
    context = mode.context
    leaves, rebuild = flatten((args, kwargs), sizes=True)
    groups: dict[Any, list[int]] = {}
    for row in range(context.members):
        groups.setdefault(tuple(_true(v, row) for v in leaves), []).append(row)
    context.note(function, f"at true sizes, in {len(groups)} groups of like members")
    batched = [isinstance(v, Tensor) and context.batched(v) for v in leaves]
    with context.outside():
        stacked = [context.stacked(v) if b else v for v, b in zip(leaves, batched, strict=True)]
        parts = []
        for rows in groups.values():
            own = [_own(v, s, b, rows) for v, s, b in zip(leaves, stacked, batched, strict=True)]
            parts.append(_part(context, rows, function, own, batched, rebuild))
            if function in _WRITES_STATISTICS and not views(rows):
                for v, s, b in zip(own, stacked, batched, strict=True):
                    if b and not s.requires_grad and not v.requires_grad:
                        _write_back(s, v, rows)
        return combined(context, parts)


def _true(value: Any, row: int) -> Any:
    if isinstance(value, Tensor):
        return box(value.shape, tag_of(value), row)
    if isinstance(value, PerMemberFunction):
        return id(value.values[row])
    return value_of(value, row) if isinstance(value, int | float) else None


def _own(value: Any, stacked: Any, batched: bool, rows: list[int]) -> Any:
    if batched:
        return narrowed(rows_of(stacked, rows), box(value.shape, tag_of(value), rows[0]))
    if isinstance(value, PerMemberFunction):
        return value.values[rows[0]]
    return value_of(value, rows[0])


@torch.no_grad()
def _write_back(whole: Tensor, part: Tensor, rows: list[int]) -> None:
    for i, row in enumerate(rows):
        narrowed(whole[row], part.shape[1:], 0).copy_(part[i])


def _part(
    context: Context,
    rows: list[int],
    function: Callable[..., Any],
    own: list[Any],
    batched: list[bool],
    rebuild: Rebuild,
) -> Part:
    if len(rows) == 1:
        given, named = rebuild(v[0] if b else v for v, b in zip(own, batched, strict=True))
        with context.generators.member(context.indices[rows[0]]):
            result = function(*given, **named)
        leaves, back = flatten(result, sizes=True)
        leaves = [v.unsqueeze(0) if isinstance(v, Tensor) else v for v in leaves]
        return Part(rows, leaves, [None] * len(leaves), back)

    def run(_: Context, leaves: list[Any]) -> Any:
        given, named = rebuild(iter(leaves))
        return function(*given, **named)

    return nested(context, rows, run, own, batched)


def nested(
    context: Context,
    rows: list[int],
    run: Callable[[Context, list[Any]], Any],
    given: list[Any],
    batched: list[bool],
    copies: Collection[Tensor] = (),
) -> Part:
    """Run some members under a separate `vmap`, with the operator rules. Requires `context.outside`.

    Args:
        run: computes the result from the members' context and the leaves, as one member sees them.
        given: leaves; those that are `batched` are tensors ``[len(rows), ...]``.
        copies: those that are copies of parameters.
    """
    found: dict[str, Any] = {}

    def one(_: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        sub = below(context, rows)
        sub.copies |= context.copies | {tensor.untyped_storage().data_ptr() for tensor in copies}
        left = iter(tensors)
        with rule_mode(sub):
            result = run(sub, [next(left) if b else v for v, b in zip(given, batched, strict=True)])
        leaves, found["rebuild"] = flatten(result, sizes=True)
        found["leaves"] = leaves
        found["tags"] = [tag_of(v) if isinstance(v, Tensor) else None for v in leaves]
        return [v for v in leaves if isinstance(v, Tensor)]

    tensors = [v for v, b in zip(given, batched, strict=True) if b]
    randomness = "different" if context.fast_rng else "error"
    results = iter(
        torch.func.vmap(one, randomness=randomness)(torch.empty(len(rows), device=context.generators.device), tensors)
    )
    leaves = [next(results) if isinstance(v, Tensor) else v for v in found["leaves"]]
    return Part(rows, leaves, found["tags"], found["rebuild"])


def below(context: Context, rows: Sequence[int]) -> Context:
    """The context for some of the members."""
    return Context(
        [context.indices[r] for r in rows],
        context.generators,
        vmap_level(),
        context.used,
        context.recording,
        context.private,
        context.fast_rng,
    )


def combined(context: Context, parts: list[Part]) -> Any:
    """The parts' results as the model sees them: tensors padded to the largest, tagged, with a hidden member axis."""
    first = parts[0]
    if any(len(p.leaves) != len(first.leaves) for p in parts):
        raise Disagreement("members of different architecture give results of different form")
    return first.rebuild(_together(context, parts, i) for i in range(len(first.leaves)))


def _together(context: Context, parts: list[Part], i: int) -> Any:
    values = [p.leaves[i] for p in parts]
    if isinstance(values[0], Tensor):
        if any(not isinstance(v, Tensor) or v.ndim != values[0].ndim or v.dtype != values[0].dtype for v in values):
            raise Disagreement("members of different architecture give tensors that can't be padded")
        return _joined(context, parts, i, values)
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        numbers: list[Any] = [None] * context.members
        for part, value in zip(parts, values, strict=True):
            for j, row in enumerate(part.rows):
                numbers[row] = value_of(value, j)
        return vary(numbers)
    if any(type(v) is not type(values[0]) or v != values[0] for v in values):
        raise Disagreement(f"members of different architecture come to different values: {values}")
    return values[0]


def _joined(context: Context, parts: list[Part], i: int, values: list[Tensor]) -> Tensor:
    boxes: list[tuple[int, ...]] = [()] * context.members
    for part, value in zip(parts, values, strict=True):
        for j, row in enumerate(part.rows):
            boxes[row] = box(value.shape[1:], part.tags[i], j)
    largest = [max(sizes) for sizes in zip(*boxes, strict=True)]
    whole = torch.cat([widened(v, largest) for v in values]) if len(values) > 1 else values[0]
    order = [row for p in parts for row in p.rows]
    if order != sorted(order):
        whole = rows_of(whole, [order.index(row) for row in range(len(order))])
    return tagged(context.wrapped(whole), list(zip(*boxes, strict=True)))


def _written(mode: Running, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not mode.context.batched(target):
        raise SharedWrite(f"{function_name(function)} writes into a tensor that the members share")

    def changed(given: Tensor, *rest: Any, **named: Any) -> Tensor:
        copy = given.clone()
        function(copy, *rest, **named)
        return copy

    changed.__name__ = function_name(function).strip("_")
    out = by_groups(mode, changed, args, kwargs)
    target.copy_(out)
    tagged(target, full(out))
    return target
