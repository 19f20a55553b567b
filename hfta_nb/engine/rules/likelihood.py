"""Cross entropy and negative log likelihood over the rows of all members at once.

`vmap` decomposes them into a dozen operations and imports torch's symbolic shapes at the first one, which takes longer
than a hundred steps of a small model. Here the members' rows are one batch of torch's kernel, and the sum or mean of
each member is computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_MORE = ("size_average", "reduce", "label_smoothing")


def _reduced(x: Tensor, labels: Tensor, target: Tensor, ignored: int, mean: bool, softmax: bool) -> Tensor:
    """Sums or means over each member's labels, ``[M]``.

    Args:
        x: ``[M, N, C, ...]``.
        labels: ``[M, N, ...]``.
        target: the labels to count, shared or of each member.
        ignored: the index of labels to ignore.
        mean: mean instead of sum.
        softmax: cross entropy instead of negative log likelihood.
    """
    total = _each(x, labels, ignored, softmax).flatten(1).sum(1)
    return total / (target != ignored).sum(-1) if mean else total


def _each(x: Tensor, labels: Tensor, ignored: int, softmax: bool) -> Tensor:
    """The loss of each label."""
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
        if x.ndim == 1:
            classes, labels = classes.unsqueeze(1), labels.unsqueeze(1)
        if reduction == "none":
            losses = _each(classes, labels, ignored, softmax)
            return context.wrapped(losses.squeeze(1) if x.ndim == 1 else losses)
        counted = labels.flatten(1) if own else target.flatten()
        return context.wrapped(_reduced(classes, labels, counted, ignored, reduction == "mean", softmax))


RULES: dict[object, Rule] = {F.cross_entropy: _likelihood, F.nll_loss: _likelihood}
