"""Cross entropy and negative log likelihood over the rows of all members at once.

`vmap` takes them apart into a dozen operations, and imports torch's symbolic shapes at the first one, which takes
longer than a hundred steps of a small model. Here the members' rows are one batch of torch's kernel, and what a member
sums or averages is added up afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.kernels.native import likelihood as native
from hfta_nb.rules.base import Context, Rule, arguments

_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_MORE = ("size_average", "reduce", "label_smoothing")


class _Likelihood(torch.autograd.Function):
    """Every member's loss, by this package's kernel: x ``[M, N, C]``, targets ``[M, N]`` or ``[N]``, losses ``[M]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, ignored: int, mean: bool, softmax: bool) -> Tensor:
        logs = (x.log_softmax(2) if softmax else x).contiguous()
        losses, counted = native.forward(logs, target, ignored, mean)
        ctx.save_for_backward(x, logs, target, counted)
        ctx.how = ignored, mean, softmax
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, logs, target, counted = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants gradients of the gradients
            losses = _by_torch(x, target.expand(len(x), -1), target, *ctx.how)
            (by_x,) = torch.autograd.grad(losses, x, grads[0], create_graph=True)
        else:
            by_x = native.backward(grads[0], logs, target, counted, *ctx.how)
        return by_x, None, None, None, None


def _takes(x: Tensor, target: Tensor, reduction: str) -> bool:
    """Whether this package's kernel computes a member's loss."""
    kinds = x.device.type == "cpu" and (x.dtype, target.dtype) == (torch.float32, torch.int64)
    return kinds and x.ndim == 2 and x.numel() > 0 and reduction != "none" and native.usable()


def _by_torch(x: Tensor, labels: Tensor, target: Tensor, ignored: int, mean: bool, softmax: bool) -> Tensor:
    """Sums or means over what is of a member, ``[M]``.

    Args:
        x: ``[M, N, C, ...]``.
        labels: ``[M, N, ...]``.
        target: what to count of, the same or one member's.
        ignored, mean, softmax: as ever.
    """
    total = _each(x, labels, ignored, softmax).flatten(1).sum(1)
    return total / (target != ignored).sum(-1) if mean else total


def _each(x: Tensor, labels: Tensor, ignored: int, softmax: bool) -> Tensor:
    """Of each label."""
    logs = x.log_softmax(2) if softmax else x
    rows = logs.reshape(-1, *logs.shape[2:]), labels.reshape(-1, *labels.shape[2:])
    return F.nll_loss(*rows, ignore_index=ignored, reduction="none").view(labels.shape)


def _likelihood(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    x, target, reduction = given["input"], given["target"], given.get("reduction", "mean")
    ignored = given.get("ignore_index", -100)
    asks_more = any(given.get(name) not in (None, 0.0) for name in _MORE)
    if (
        asks_more
        or given.get("weight") is not None
        or not context.batched(x)
        or target.is_floating_point()
        or reduction not in ("none", "sum", "mean")
        or target.ndim != x.ndim - 1
    ):
        return function(*args, **kwargs)
    context.note(function, "one kernel over the rows of all members")
    with context.outside():
        own, classes, softmax = context.batched(target), context.stacked(x), function is F.cross_entropy
        labels = context.stacked(target)
        if not context.plain and _takes(x, target, reduction):
            rows = (labels if own else target).contiguous()
            return context.wrapped(_Likelihood.apply(classes, rows, ignored, reduction == "mean", softmax))  # type: ignore[no-untyped-call]
        if x.ndim == 1:
            classes, labels = classes.unsqueeze(1), labels.unsqueeze(1)
        if reduction == "none":
            losses = _each(classes, labels, ignored, softmax)
            return context.wrapped(losses.squeeze(1) if x.ndim == 1 else losses)
        counted = labels.flatten(1) if own else target.flatten()
        return context.wrapped(_by_torch(classes, labels, counted, ignored, reduction == "mean", softmax))


RULES: dict[object, Rule] = {F.cross_entropy: _likelihood, F.nll_loss: _likelihood}
