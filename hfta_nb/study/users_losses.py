"""Losses and metrics of the loop that `Study.check` compares with: those handed over, and usual ones written anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.engine.array.access import FunctionStates, tensor_map
from hfta_nb.models.losses import BY_TASK, HeldLoss, Loss, NamedLoss, prediction, share_of_known
from hfta_nb.models.metrics import Metric, accuracy, mae, usual_accuracy, usual_mae
from hfta_nb.models.recipes import Family
from hfta_nb.study.given_remedies import Remedies

ELEMENTWISE = ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits")


def tapped(family: Family, data: Any, memory: FunctionStates) -> dict[str, Tap]:
    """By the name of its curve, each loss."""
    losses = {phase.score: phase.loss for phase in family.phases}
    if not losses:
        given = family.loss_for(data)
        losses = {"loss": _as_torch_has_it(given)}
    taps = {name: (HeldTap if isinstance(loss, HeldLoss) else Tap)(loss, memory) for name, loss in losses.items()}
    if not family.phases:
        taps["loss"].counts_as = given
    return taps


def _as_torch_has_it(loss: Loss) -> Loss:
    """A loss by name, or a task's usual one, written anew where outputs and targets have an entry each; else itself."""
    usual = "mse_loss" if loss is BY_TASK["regression"] else ""
    name = loss.__name__ if isinstance(loss, NamedLoss) else usual
    if name not in ELEMENTWISE:
        return loss
    function = getattr(F, name)

    def same(output: Any, target: Any) -> Tensor:
        found = prediction(output)
        y, counts = _targets(target, classes=name == "binary_cross_entropy_with_logits")
        if found.numel() != y.numel():
            return loss(output, target)
        out, aim = found.reshape(-1)[counts], y.reshape(-1)[counts]
        if not len(out):
            return found.sum() * 0
        return function(out, aim if aim.is_floating_point() else aim.to(found.dtype))  # type: ignore[no-any-return]

    return same


def _targets(target: Any, classes: bool) -> tuple[Tensor, Tensor]:
    """Targets, and which of them count, flat; all where a mask beside them is of another size."""
    y = target
    kept = None
    if isinstance(target, dict):
        kept = target["mask"]
        y = next(value for key, value in target.items() if key != "mask")
    counts = ~y.isnan() if y.is_floating_point() else y != (-100 if classes else torch.inf)
    if kept is not None and kept.numel() == y.numel():
        counts = counts.reshape(-1) & kept.reshape(-1).bool()
    return y, counts.reshape(-1)


class Tap:
    """A loss that gets the target that was handed over, and takes down what it gives.

    Args:
        loss: the loss.
        memory: keeps what it keeps between calls.
    """

    def __init__(self, loss: Loss, memory: FunctionStates) -> None:
        self.loss, self.memory, self.target = loss, memory, None
        self.counts_as: Loss = loss  # where targets are missing; see `share_of_known`
        self.remedies: Remedies | None = None
        self.training = False
        self.calls: list[tuple[float, Any]] = []
        self.dtypes: set[torch.dtype] = set()

    def __call__(self, output: Any, target: Any) -> Tensor:
        remedied = self.training and self.remedies is not None
        return self.noted(self.remedies.loss if remedied and self.remedies else self.loss, output)

    def share_of(self, target: Any) -> Tensor | None:
        """See `share_of_known`."""
        return share_of_known(self.counts_as, target) if self.remedies is None else self.remedies.share_of(target)

    def noted(self, function: Callable[[Any, Any], Tensor], output: Any) -> Tensor:
        """A call of the loss, or of a member's own."""
        with self.memory.of_one((self.loss,)):
            value = function(output, self.target)
        self.dtypes.add(value.dtype)
        self.calls.append((float(value.detach()), tensor_map(Tensor.detach, output)))
        return value


class HeldTap(Tap):
    """Likewise of a loss with parameters, which are in the member's module."""

    loss: HeldLoss

    def of_module(self, module: nn.Module) -> Loss:
        """See `HeldLoss`."""
        own = self.loss.of_module(module)
        return lambda output, target: self.noted(own, output)


def summed(metric: Metric) -> Callable[[Any, Any], Tensor]:
    """The sums of a metric, written anew where outputs and targets have an entry each; see `_as_torch_has_it`."""
    if metric is mae or metric is usual_mae:
        return lambda output, y: _apart(prediction(output), y, metric)
    if metric is accuracy or metric is usual_accuracy:
        return lambda output, y: _hits(prediction(output), y, metric)
    return metric.function


def _apart(output: Tensor, target: Any, metric: Metric) -> Tensor:
    y, counts = _targets(target, classes=False)
    if output.numel() != y.numel():
        return metric.function(output, target)  # type: ignore[no-any-return]
    errors = (output.reshape(-1)[counts].double() - y.reshape(-1)[counts].double()).abs()
    return torch.stack([errors.sum(), counts.sum().double()])


def _hits(output: Tensor, target: Any, metric: Metric) -> Tensor:
    y, counts = _targets(target, classes=True)
    if output.ndim != 2 or output.shape[1] < 2 or y.is_floating_point() or y.numel() != len(output):
        return metric.function(output, target)  # type: ignore[no-any-return]
    right = (output.argmax(1) == y.reshape(-1))[counts]
    return torch.stack([right.sum(), counts.sum()]).double()
