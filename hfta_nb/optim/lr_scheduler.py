"""Lr schedulers with one setting per member: torch's own, one for each member.

Every class of `torch.optim.lr_scheduler` is here under its name, with its arguments. Each argument is one value, or an
array-like (list, array, tensor) with one per member; where torch itself takes a list of numbers (`milestones`), a list
is one value, and a list of lists or `hfta_nb.per_member` is per member. What torch takes one of per parameter group
(`max_lr`, `lr_lambda`, ...) is given as a tuple.
"""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler as reference

from hfta_nb.optim.lr_base import ArrayLRScheduler, ByMember
from hfta_nb.optim.lr_composed import ChainedScheduler, SequentialLR
from hfta_nb.optim.lr_settings import TorchLRScheduler
from hfta_nb.optim.optimizer_base import ArrayOptimizer

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

    def __init__(self, optimizer: ArrayOptimizer, lr_lambda: Any, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, lr_lambda=lr_lambda, last_epoch=last_epoch)


class MultiplicativeLR(TorchLRScheduler):
    """The lr times a function of the epoch; a list of functions is one per member, a tuple one per group.

    Source: `torch.optim.lr_scheduler.MultiplicativeLR`.
    """

    torch_class = reference.MultiplicativeLR
    by_group = ("lr_lambda",)

    def __init__(self, optimizer: ArrayOptimizer, lr_lambda: Any, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, lr_lambda=lr_lambda, last_epoch=last_epoch)


class StepLR(TorchLRScheduler):
    """Every `step_size` epochs, lr times `gamma`. Source: `torch.optim.lr_scheduler.StepLR`."""

    torch_class = reference.StepLR

    def __init__(self, optimizer: ArrayOptimizer, step_size: Any, gamma: Any = 0.1, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, step_size=step_size, gamma=gamma, last_epoch=last_epoch)


class MultiStepLR(TorchLRScheduler):
    """At each of the `milestones`, lr times `gamma`; a list of milestones is one value, a list of lists one per member.

    Source: `torch.optim.lr_scheduler.MultiStepLR`.
    """

    torch_class = reference.MultiStepLR
    lists = ("milestones",)

    def __init__(self, optimizer: ArrayOptimizer, milestones: Any, gamma: Any = 0.1, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, milestones=milestones, gamma=gamma, last_epoch=last_epoch)


class ConstantLR(TorchLRScheduler):
    """The lr times `factor` for the first `total_iters` epochs. Source: `torch.optim.lr_scheduler.ConstantLR`."""

    torch_class = reference.ConstantLR

    def __init__(
        self, optimizer: ArrayOptimizer, factor: Any = 1.0 / 3, total_iters: Any = 5, last_epoch: Any = -1
    ) -> None:
        super().__init__(optimizer, factor=factor, total_iters=total_iters, last_epoch=last_epoch)


class LinearLR(TorchLRScheduler):
    """The lr times a factor that goes from `start_factor` to `end_factor` in `total_iters` epochs.

    Source: `torch.optim.lr_scheduler.LinearLR`.
    """

    torch_class = reference.LinearLR

    def __init__(
        self,
        optimizer: ArrayOptimizer,
        start_factor: Any = 1.0 / 3,
        end_factor: Any = 1.0,
        total_iters: Any = 5,
        last_epoch: Any = -1,
    ) -> None:
        settings = {"start_factor": start_factor, "end_factor": end_factor, "total_iters": total_iters}
        super().__init__(optimizer, **settings, last_epoch=last_epoch)


class ExponentialLR(TorchLRScheduler):
    """Every epoch, lr times `gamma`. Source: `torch.optim.lr_scheduler.ExponentialLR`."""

    torch_class = reference.ExponentialLR

    def __init__(self, optimizer: ArrayOptimizer, gamma: Any, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, gamma=gamma, last_epoch=last_epoch)


class PolynomialLR(TorchLRScheduler):
    """From lr to 0 in `total_iters` epochs, along a power. Source: `torch.optim.lr_scheduler.PolynomialLR`."""

    torch_class = reference.PolynomialLR

    def __init__(self, optimizer: ArrayOptimizer, total_iters: Any = 5, power: Any = 1.0, last_epoch: Any = -1) -> None:
        super().__init__(optimizer, total_iters=total_iters, power=power, last_epoch=last_epoch)


class CosineAnnealingLR(TorchLRScheduler):
    """Half a cosine from lr to `eta_min` in `T_max` epochs. Source: `torch.optim.lr_scheduler.CosineAnnealingLR`."""

    torch_class = reference.CosineAnnealingLR

    def __init__(self, optimizer: ArrayOptimizer, T_max: Any, eta_min: Any = 0.0, last_epoch: Any = -1) -> None:  # noqa: N803
        super().__init__(optimizer, T_max=T_max, eta_min=eta_min, last_epoch=last_epoch)


class CosineAnnealingWarmRestarts(TorchLRScheduler):
    """Half a cosine again and again, each `T_mult` times as long as the one before.

    Source: `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
    """

    torch_class = reference.CosineAnnealingWarmRestarts

    def __init__(
        self,
        optimizer: ArrayOptimizer,
        T_0: Any,  # noqa: N803
        T_mult: Any = 1,  # noqa: N803
        eta_min: Any = 0.0,
        last_epoch: Any = -1,
    ) -> None:
        super().__init__(optimizer, T_0=T_0, T_mult=T_mult, eta_min=eta_min, last_epoch=last_epoch)


class CyclicLR(TorchLRScheduler):
    """Up and down between two values of lr, and of momentum the other way; see torch for the arguments.

    A list is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.CyclicLR`.
    """

    torch_class = reference.CyclicLR
    by_group = ("base_lr", "max_lr", "base_momentum", "max_momentum")

    def __init__(
        self,
        optimizer: ArrayOptimizer,
        base_lr: Any,
        max_lr: Any,
        step_size_up: Any = 2000,
        step_size_down: Any = None,
        mode: Any = "triangular",
        gamma: Any = 1.0,
        scale_fn: Any = None,
        scale_mode: Any = "cycle",
        cycle_momentum: Any = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: Any = -1,
    ) -> None:
        super().__init__(
            optimizer, **{k: v for k, v in locals().items() if k not in ("self", "optimizer", "__class__")}
        )


class OneCycleLR(TorchLRScheduler):
    """Up to `max_lr` and down to almost nothing, momentum the other way; see torch for the arguments.

    A list is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.OneCycleLR`.
    """

    torch_class = reference.OneCycleLR
    by_group = ("max_lr", "base_momentum", "max_momentum")

    def __init__(
        self,
        optimizer: ArrayOptimizer,
        max_lr: Any,
        total_steps: Any = None,
        epochs: Any = None,
        steps_per_epoch: Any = None,
        pct_start: Any = 0.3,
        anneal_strategy: Any = "cos",
        cycle_momentum: Any = True,
        base_momentum: Any = 0.85,
        max_momentum: Any = 0.95,
        div_factor: Any = 25.0,
        final_div_factor: Any = 1e4,
        three_phase: Any = False,
        last_epoch: Any = -1,
    ) -> None:
        super().__init__(
            optimizer, **{k: v for k, v in locals().items() if k not in ("self", "optimizer", "__class__")}
        )


class ReduceLROnPlateau(TorchLRScheduler):
    """The lr times `factor` when a metric has stopped getting better; ``step(metrics)`` takes one per member, ``[M]``.

    A list for `min_lr` is one per member; one value per parameter group is a tuple.

    Source: `torch.optim.lr_scheduler.ReduceLROnPlateau`.
    """

    torch_class = reference.ReduceLROnPlateau
    by_group = ("min_lr",)

    def __init__(
        self,
        optimizer: ArrayOptimizer,
        mode: Any = "min",
        factor: Any = 0.1,
        patience: Any = 10,
        threshold: Any = 1e-4,
        threshold_mode: Any = "rel",
        cooldown: Any = 0,
        min_lr: Any = 0,
        eps: Any = 1e-8,
    ) -> None:
        super().__init__(
            optimizer, **{k: v for k, v in locals().items() if k not in ("self", "optimizer", "__class__")}
        )
