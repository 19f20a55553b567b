"""Copies of the values that members have set, and one value for members that run at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hfta_nb.engine.eager.mutable_values import Memo, agree, copy_value
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.engine.rules.rule_mode import Context, Disagreement

K = TypeVar("K")


def copies_of(values: Mapping[K, Any], memo: Memo) -> dict[K, Any]:
    """Copies of values; what two of them share, their copies share. A value that can't be copied stays itself."""
    found = {}
    for key, value in values.items():
        try:
            found[key] = copy_value(value, memo)
        except TypeError:
            found[key] = value
    return found


def copy_of(value: Any, memo: Memo | None = None) -> Any:
    """A copy of a value; the value itself where it can't be copied."""
    return copies_of({"": value}, {} if memo is None else memo)[""]


def with_tensors(values: Mapping[K, Any], copies: Mapping[K, Any], tensors: Mapping[int, Tensor]) -> dict[K, Any]:
    """Copies of values with other tensors in place of theirs, as copying with a memo of the tensors makes them.

    Args:
        values: those that were copied.
        copies: of them; the values themselves where they can't be copied, although their tensors can be replaced.
        tensors: the new ones by the ids of the old ones.
    """
    found, known = dict(copies), dict[int, Any]()
    for key, value in values.items():
        if copies[key] is not value or id(value) in known:
            found[key] = known.get(id(value), copies[key])
            continue
        leaves, rebuild = flatten(value)
        if not tensors.keys().isdisjoint(map(id, leaves)):
            found[key] = known[id(value)] = unflatten(rebuild, [tensors.get(id(v), v) for v in leaves])
    return found


def joined_rows(rows: Sequence[Mapping[Any, Any]], context: Context) -> dict[Any, Any]:
    """One value for each place, for members that run at once: tensors stacked, other values if they agree.

    What two places share in the members, down to an object within a list, they share in the result.

    Args:
        rows: the values of each member, by place.
        context: of the call.

    Raises:
        Disagreement: they don't.
    """
    tensors, seen = dict[int, Tensor](), dict[int, tuple[Any, ...]]()
    for place in rows[0]:
        columns = [flatten(row[place])[0] for row in rows]
        for column in zip(*columns, strict=True):
            first, same = column[0], tuple(map(id, column))
            if not isinstance(first, Tensor):
                if not all(agree(v, first) for v in column):
                    raise Disagreement(f"members have different values of {'.'.join(filter(None, place))}")
            elif id(first) not in seen:
                seen[id(first)] = same
                with context.outside():
                    stacked = torch.stack(column)
                tensors[id(first)] = context.wrapped(stacked)
            elif seen[id(first)] != same:
                raise Disagreement(f"members differ in what shares the tensor {'.'.join(filter(None, place))}")
    return with_tensors(rows[0], copies_of(rows[0], {**tensors}), tensors)


def joined(
    values: list[Any],
    context: Context,
    place: Sequence[str],
    copied: Callable[[Any], Any] | None = None,
    known: dict[Any, Any] | None = None,
) -> Any:
    """One value for members that run at once: tensors stacked, other values if they agree.

    Args:
        values: one per member.
        context: of the call.
        place: where they are, for the error.
        copied: copies a value that is no tensor.
        known: what has been joined for other places; what they share stays shared.

    Raises:
        Disagreement: they don't.
    """
    parts = [flatten(v) for v in values]
    rebuild = parts[0][1]
    known = {} if known is None else known
    whole = ("whole", *map(id, values))
    if whole in known:  # the same list or dict
        return known[whole][1]
    columns = list(zip(*(leaves for leaves, _ in parts), strict=True))
    for column in columns:
        key = tuple(map(id, column))
        if key in known:
            continue
        if isinstance(column[0], Tensor):
            with context.outside():
                stacked = torch.stack(column)
            known[key] = column, context.wrapped(stacked)
        elif all(agree(v, column[0]) for v in column):
            known[key] = column, (copied or copy_of)(column[0])
        else:
            raise Disagreement(f"members have different values of {'.'.join(filter(None, place))}")
    found = unflatten(rebuild, [known[tuple(map(id, column))][1] for column in columns])
    known[whole] = values, found
    return found
