"""Embedding tables of all members as one table, in which each member looks up its own part.

`vmap`'s own rule gives wrong gradients (torch 2.13): with a padding index, and indices that differ by member, only the
first member's padding row is excluded from learning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.members.untraced import untraced
from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def _embedding(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    index, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    if not context.batched(weight) and not (context.batched(index) and padding is not None):
        return function(*args, **kwargs)
    context.note(function, "one table for all members")
    with context.outside():
        table, own = context.stacked(weight), context.stacked(index)
        rows = table.shape[1]
        _check(own, rows)
        if given.get("max_norm") is not None:
            _shrink(table, own, float(given["max_norm"]), float(given.get("norm_type", 2.0)))
        first = torch.arange(context.members, device=own.device).view(-1, *[1] * index.ndim) * rows
        flat = table.reshape(-1, *table.shape[2:])
        out: Tensor = F.embedding(own + first, flat, scale_grad_by_freq=bool(given.get("scale_grad_by_freq")))
        if padding is not None:
            still = own.eq(padding % rows).unsqueeze(-1)
            out = torch.where(still, out.detach(), out)
        return context.wrapped(out)


@torch.no_grad()
def _shrink(table: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Shorten rows that are looked up and longer than `max_norm`, in place."""
    for member, looked_up in enumerate(index):
        # `.data`: as in the plain module, autograd does not record this.
        torch.embedding_renorm_(table.data.select(0, member), looked_up.contiguous(), max_norm, norm_type)


def _check(index: Tensor, rows: int) -> None:
    """Raise an error for an index beyond the table, as torch does; it would select another member's row."""
    inside = ((index >= 0) & (index < rows)).all()
    with untraced():  # a replayed step runs the assertion below instead
        if index.device.type == "cpu" and not inside:
            raise IndexError("index out of range in self")
    torch._assert_async(inside)


RULES: dict[object, Rule] = {F.embedding: _embedding}
