"""Lr schedulers with one setting per member: torch's own, one for each member.

Every class of `torch.optim.lr_scheduler` is here under its name, with its arguments. Each argument is one value, or an
array-like (list, array, tensor) with one per member; where torch itself takes a list of numbers (`milestones`), a list
is one value, and a list of lists or `hfta_nb.per_member` is per member. What torch takes one of per parameter group
(`max_lr`, `lr_lambda`, ...) is given as a tuple.
"""

from __future__ import annotations

from torch.optim import lr_scheduler as reference

from hfta_nb.optim.lr_base import ArrayLRScheduler, ByMember
from hfta_nb.optim.lr_composed import ChainedScheduler, SequentialLR
from hfta_nb.optim.lr_settings import TorchLRScheduler

__all__ = [
    "ArrayLRScheduler",
    "ByMember",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LambdaLR(TorchLRScheduler):
    """The initial lr times a function of the epoch; a list of functions is one per member, a tuple one per group.

    Source: `torch.optim.lr_scheduler.LambdaLR`.
    """

    torch_class = reference.LambdaLR
    by_group = ("lr_lambda",)


class MultiplicativeLR(TorchLRScheduler):
    """The lr times a function of the epoch; a list of functions is one per member, a tuple one per group.

    Source: `torch.optim.lr_scheduler.MultiplicativeLR`.
    """

    torch_class = reference.MultiplicativeLR
    by_group = ("lr_lambda",)


class StepLR(TorchLRScheduler):
    """Every `step_size` epochs, lr times `gamma`. Source: `torch.optim.lr_scheduler.StepLR`."""

    torch_class = reference.StepLR


class MultiStepLR(TorchLRScheduler):
    """At each of the `milestones`, lr times `gamma`; a list of milestones is one value, a list of lists one per member.

    Source: `torch.optim.lr_scheduler.MultiStepLR`.
    """

    torch_class = reference.MultiStepLR
    lists = ("milestones",)


class ConstantLR(TorchLRScheduler):
    """The lr times `factor` for the first `total_iters` epochs. Source: `torch.optim.lr_scheduler.ConstantLR`."""

    torch_class = reference.ConstantLR


class LinearLR(TorchLRScheduler):
    """The lr times a factor that goes from `start_factor` to `end_factor` in `total_iters` epochs.

    Source: `torch.optim.lr_scheduler.LinearLR`.
    """

    torch_class = reference.LinearLR


class ExponentialLR(TorchLRScheduler):
    """Every epoch, lr times `gamma`. Source: `torch.optim.lr_scheduler.ExponentialLR`."""

    torch_class = reference.ExponentialLR


class PolynomialLR(TorchLRScheduler):
    """From lr to 0 in `total_iters` epochs, along a power. Source: `torch.optim.lr_scheduler.PolynomialLR`."""

    torch_class = reference.PolynomialLR


class CosineAnnealingLR(TorchLRScheduler):
    """Half a cosine from lr to `eta_min` in `T_max` epochs. Source: `torch.optim.lr_scheduler.CosineAnnealingLR`."""

    torch_class = reference.CosineAnnealingLR


class CosineAnnealingWarmRestarts(TorchLRScheduler):
    """Half a cosine again and again, each `T_mult` times as long as the one before.

    Source: `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
    """

    torch_class = reference.CosineAnnealingWarmRestarts


class CyclicLR(TorchLRScheduler):
    """Up and down between two values of lr, and of momentum the other way; see torch for the arguments.

    A list is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.CyclicLR`.
    """

    torch_class = reference.CyclicLR
    by_group = ("base_lr", "max_lr", "base_momentum", "max_momentum")


class OneCycleLR(TorchLRScheduler):
    """Up to `max_lr` and down to almost nothing, momentum the other way; see torch for the arguments.

    A list is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.OneCycleLR`.
    """

    torch_class = reference.OneCycleLR
    by_group = ("max_lr", "base_momentum", "max_momentum")


class ReduceLROnPlateau(TorchLRScheduler):
    """The lr times `factor` when a metric has stopped getting better; ``step(metrics)`` takes one per member, ``[M]``.

    A list for `min_lr` is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.ReduceLROnPlateau`.
    """

    torch_class = reference.ReduceLROnPlateau
    by_group = ("min_lr",)
