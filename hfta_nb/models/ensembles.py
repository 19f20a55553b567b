"""Trained modules as one: the mean of their predictions, how far they are apart, and how good that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hfta_nb.models.losses import prediction

BINS = 15
"""Of confidences, in the calibration error."""


class Ensemble(nn.Module):
    """Trained modules as one plain module, for inference.

    Args:
        modules: they take the same inputs, and are kept as they are.
        weights: of each, above 0; they count relative to their sum.
        classes: whether the modules return logits ``[N, classes]``, or one logit of two classes, ``[N]`` or ``[N, 1]``;
            else numbers ``[N, *rest]``.

    Example:
        >>> both = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], [1.0, 2.0], classes=True)
        >>> mean, spread = both(torch.ones(5, 4))
        >>> mean.shape, spread.shape
        (torch.Size([5, 3]), torch.Size([5, 3]))
    """

    weights: Tensor

    def __init__(self, modules: Sequence[nn.Module], weights: Sequence[float], classes: bool) -> None:
        super().__init__()
        self.members, self.classes = nn.ModuleList(modules), classes
        total = torch.tensor(list(weights), dtype=torch.float64)
        self.register_buffer("weights", total / total.sum())

    def forward(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Predictions of a batch.

        Returns:
            The weighted mean of the members' predictions, probabilities ``[N, classes]`` or numbers ``[N, *rest]``, and
            their weighted standard deviation, of the same shape.
        """
        each = torch.stack([predictions(prediction(m(*inputs, **named)), self.classes) for m in self.members])
        weights = self.weights.to(each.dtype).view(-1, *[1] * (each.ndim - 1))
        mean = (weights * each).sum(0)
        return mean, (weights * (each - mean).square()).sum(0).sqrt()


def predictions(output: Tensor, classes: bool) -> Tensor:
    """What a module predicts: probabilities ``[N, classes]``, of logits; numbers as they are."""
    if not classes:
        return output
    if output.ndim > 1 and output.shape[-1] > 1:
        return output.softmax(-1)
    one = output.flatten().sigmoid()
    return torch.stack([1 - one, one], -1)


# How good predictions are; each is a number per leading entry.


def losses_of(found: Float[Tensor, "*any N out"], y: Tensor, classes: bool) -> Float[Tensor, " *any"]:
    """Mean log loss of probabilities, or mean squared error of numbers."""
    if not classes:
        return (found - y).square().flatten(-2).mean(-1)
    own = found[..., torch.arange(len(y)), y]
    return -own.clamp(min=torch.finfo(found.dtype).tiny).log().mean(-1)


def accuracy_of(found: Float[Tensor, "*any N classes"], y: Int[Tensor, " N"]) -> Float[Tensor, " *any"]:
    """The share of samples whose class has the highest probability."""
    return (found.argmax(-1) == y).to(found.dtype).mean(-1)


def calibration_error(found: Float[Tensor, "N classes"], y: Int[Tensor, " N"], bins: int = BINS) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy over equal bins of confidence.

    Args:
        found: probabilities.
        y: class numbers.
        bins: how many.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, equation 3.
    """
    confidence, chosen = found.max(-1)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    apart = (chosen == y).to(found.dtype) - confidence
    sums = torch.zeros(bins, dtype=found.dtype).index_add_(0, place, apart)
    return float(sums.abs().sum() / len(y))


def scores_of(found: Float[Tensor, "N out"], y: Tensor, classes: bool) -> dict[str, float]:
    """Of classes accuracy, log loss and calibration error; of numbers the mean squared and absolute errors."""
    loss = float(losses_of(found, y, classes))
    if not classes:
        return {"mse": loss, "mae": float((found - y).abs().mean())}
    return {"accuracy": float(accuracy_of(found, y)), "log_loss": loss, "ece": calibration_error(found, y)}


# Which of them go together.


def greedy(found: Float[Tensor, "C N out"], y: Tensor, classes: bool, most: int) -> list[int]:
    """Candidates in the order in which they are taken, one possibly several times: each time the one whose addition to
    the mean gives the lowest loss, the first of equals.

    Args:
        found: predictions of the candidates.
        y: targets.
        classes: whether predictions are probabilities.
        most: how many are taken.

    Source: Caruana et al., Ensemble Selection from Libraries of Models, ICML 2004, selection with replacement.
    """
    total, taken = torch.zeros_like(found[0]), list[int]()
    for count in range(1, most + 1):
        losses = losses_of((total + found) / count, y, classes)
        taken.append(int(losses.nan_to_num(nan=torch.inf).argmin()))
        total = total + found[taken[-1]]
    return taken


def ranked(found: Float[Tensor, "C N out"], y: Tensor, classes: bool) -> list[int]:
    """Candidates by their own loss, the lowest first."""
    order = losses_of(found, y, classes).nan_to_num(nan=torch.inf).argsort(stable=True)
    return [int(place) for place in order]
