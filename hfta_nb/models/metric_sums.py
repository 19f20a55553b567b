"""Sums that add up over batches, from logits with the classes in the last axis, and what becomes of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from hfta_nb.data.labels import IGNORED


def hits(
    output: Float[Tensor, " N *classes"], target: Int[Tensor, " N *rest"], ignored: int = IGNORED
) -> Float[Tensor, " 2"]:
    """Targets predicted rightly, and targets; of logits ``[N, *rest, classes]``, or of one logit of two classes, ``[N,
    *rest]`` or ``[N, *rest, 1]``."""
    one = output.ndim == target.ndim or output.shape[-1] == 1
    found = output.reshape(target.shape) > 0 if one else output.argmax(-1)
    counted = target != ignored
    return torch.stack([((found == target) & counted).sum(), counted.sum()]).to(output.dtype)


def top5(output: Float[Tensor, "N classes"], target: Int[Tensor, " N"]) -> Float[Tensor, " 2"]:
    best = output.topk(min(5, output.shape[-1]), -1).indices
    hits = (best == target.unsqueeze(-1)).any(-1)  # no output has the number of a target that is missing
    return torch.stack([hits.sum(), (target != IGNORED).sum()]).to(output.dtype)


def surprise(output: Float[Tensor, "N *rest classes"], target: Int[Tensor, " N *rest"]) -> Float[Tensor, " 2"]:
    """The sum of cross entropies, and their number."""
    logits, flat = output.reshape(-1, output.shape[-1]), target.reshape(-1)
    total = F.cross_entropy(logits, flat, ignore_index=IGNORED, reduction="sum")
    return torch.stack([total, (flat != IGNORED).sum().to(total.dtype)])


def overlaps(output: Float[Tensor, "N *rest classes"], target: Int[Tensor, " N *rest"]) -> Float[Tensor, "2 classes"]:
    """Per class, the pixels (or points) in both prediction and target, and those in either."""
    size = output.shape[-1]
    # Compared with each class, not one-hot: vmap has no rule for that.
    numbers = torch.arange(size, device=target.device)
    true = target.reshape(-1, 1) == numbers
    found = (output.argmax(-1).reshape(-1, 1) == numbers) & (target.reshape(-1, 1) != IGNORED)
    return torch.stack([(found & true).sum(0), (found | true).sum(0)]).to(output.dtype)


def confusion(output: Float[Tensor, "N *rest classes"], target: Int[Tensor, " N *rest"]) -> Float[Tensor, "C C"]:
    """How many targets of each class (rows) are predicted as each class (columns)."""
    one = output.ndim == target.ndim or output.shape[-1] == 1
    found = (output.reshape(target.shape) > 0).long() if one else output.argmax(-1)
    numbers = torch.arange(2 if one else output.shape[-1], device=target.device)
    true, predicted = ((v.reshape(-1, 1) == numbers).to(output.dtype) for v in (target, found))
    return true.T @ predicted


def balanced_accuracy(counts: Float[Tensor, "C C"]) -> Float[Tensor, ""]:
    support = counts.sum(1)
    return (counts.diagonal() / support.clamp(min=1)).sum() / support.gt(0).sum().clamp(min=1)


def macro_f1(counts: Float[Tensor, "C C"]) -> Float[Tensor, ""]:
    both = counts.sum(0) + counts.sum(1)
    return (2 * counts.diagonal() / both.clamp(min=1)).sum() / both.gt(0).sum().clamp(min=1)


def ratio(sums: Float[Tensor, " 2"]) -> Float[Tensor, ""]:
    return sums[0] / sums[1].clamp(min=1)


def perplexity(sums: Float[Tensor, " 2"]) -> Float[Tensor, ""]:
    return torch.exp(ratio(sums))


def mean_iou(sums: Float[Tensor, "2 classes"]) -> Float[Tensor, ""]:
    both, either = sums.unbind()
    return (both / either.clamp(min=1)).sum() / either.gt(0).sum().clamp(min=1)


BINS = 4096
"""Of the logits of `auroc`."""


def ranks(output: Float[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, "2 bins"]:
    """How many negatives and positives have a logit in each bin; the bins are even in x / (1 + |x|)."""
    place = ((F.softsign(output.double()) + 1) / 2 * BINS).long().clamp(0, BINS - 1)
    counted = target != IGNORED
    both = place + torch.where(counted, target, 0) * BINS
    counts = torch.zeros(2 * BINS, dtype=output.dtype, device=output.device)
    return counts.scatter_add(0, both, counted.to(output.dtype)).view(2, BINS)


def auroc(sums: Float[Tensor, "2 bins"]) -> Float[Tensor, ""]:
    negatives, positives = sums.double().unbind()
    below = negatives.cumsum(0) - negatives / 2  # in the same bin is half a win
    pairs = negatives.sum() * positives.sum()
    return ((positives * below).sum() / pairs).to(sums.dtype)
