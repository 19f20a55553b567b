"""Cross entropy and negative log likelihood over the rows of all members at once.

`vmap` decomposes them into a dozen operations and imports torch's symbolic shapes at the first one, which takes longer
than a hundred steps of a small model. Here the members' rows are one batch of torch's kernel, and the sum or mean of
each member is computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments

_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


@dataclass(frozen=True)
class _LabelLoss:
    """How the loss of a label is computed.

    Attributes:
        softmax: cross entropy instead of negative log likelihood.
        ignored: the index of labels to ignore.
        weight: of classes, ``[C]``; None for 1.
        smoothing: the part of each label that is spread over all classes.
    """

    softmax: bool
    ignored: int
    weight: Tensor | None
    smoothing: float

    def each(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label.

        Args:
            x: ``[M, N, C, ...]``.
            labels: ``[M, N, ...]``.
        """
        logs = x.log_softmax(2) if self.softmax else x
        rows = logs.reshape(-1, *logs.shape[2:]), labels.reshape(-1, *labels.shape[2:])
        found = F.nll_loss(*rows, weight=self.weight, ignore_index=self.ignored, reduction="none").view(labels.shape)
        if not self.smoothing:
            return found
        spread = logs if self.weight is None else logs * self.weight.view(-1, *[1] * (logs.ndim - 3))
        spread = spread.sum(2).masked_fill(labels == self.ignored, 0.0)
        return found * (1 - self.smoothing) - spread * (self.smoothing / logs.shape[2])

    def counted(self, target: Tensor) -> Tensor:
        """By how much the sum of losses is divided for their mean, over the last axis of `target`."""
        there = target != self.ignored
        if self.weight is None:
            return there.sum(-1)
        return (self.weight[torch.where(there, target, 0)] * there).sum(-1)


def _likelihood(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(_NAMES, args, kwargs)
    x, target, reduction, weight = given["input"], given["target"], given.get("reduction", "mean"), given.get("weight")
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if (
        old
        or not context.batched(x)
        or (weight is not None and (context.batched(weight) or weight.requires_grad))
        or target.is_floating_point()
        or reduction not in ("none", "sum", "mean")
        or target.ndim != x.ndim - 1
    ):
        return function(*args, **kwargs)
    context.note(function, "one kernel over the rows of all members")
    softmax, smoothing = function is F.cross_entropy, float(given.get("label_smoothing") or 0.0)
    loss = _LabelLoss(softmax, given.get("ignore_index", -100), weight, smoothing)
    with context.outside():
        own, classes, labels = context.batched(target), context.stacked(x), context.stacked(target)
        if x.ndim == 1:
            classes, labels = classes.unsqueeze(1), labels.unsqueeze(1)
        losses = loss.each(classes, labels)
        if reduction == "none":
            return context.wrapped(losses.squeeze(1) if x.ndim == 1 else losses)
        total = losses.flatten(1).sum(1)
        counted = labels.flatten(1) if own else target.flatten()
        return context.wrapped(total / loss.counted(counted) if reduction == "mean" else total)


RULES: dict[object, Rule] = {F.cross_entropy: _likelihood, F.nll_loss: _likelihood}
