"""The tables of optimizers and lr schedulers for the contract tests, completed by torch's own list.

A new optimizer is a row here. `how` of a class (one pass, batched by parameter, or one member at a time) is an
attribute of the class itself: ``getattr(hfta_nb.optim, row.name).how``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler as torch_lr

import hfta_nb.optim
from tests.contract.zoo.internal import thawed


@dataclass(frozen=True)
class OptimizerRow:
    """An optimizer or lr scheduler under contract: its settings, a list holding one value per member (of three).

    Attributes:
        lists: settings of which a list is one value.
        float32: tolerance of a float32 run.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    float32: float = 1e-4

    @property
    def plain_class(self) -> Any:
        """The class of the plain loop: torch's, of a member's own optimizer."""
        return getattr(hfta_nb.optim, self.name).torch_class

    def alone(self, member: int) -> dict[str, Any]:
        """What torch's optimizer of one member is given."""
        return {k: self._one(k, v, member) for k, v in self.settings.items()}

    def _one(self, name: str, value: Any, member: int) -> Any:
        if name in self.lists and not any(isinstance(v, list) for v in value):
            return value
        return value[member] if isinstance(value, list) else value

    def __str__(self) -> str:
        return f"{self.name} {self.settings}"


# fmt: off
OPTIMIZERS = [
    OptimizerRow("SGD", {"lr": 0.1}),
    OptimizerRow("SGD", {"lr": [0.1, 0.2, 0.05], "momentum": [0.0, 0.9, 0.5], "nesterov": [False, True, False]}),
    OptimizerRow("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": [0.0, 0.1, 0.01]}),
    OptimizerRow("SGD", {"lr": 0.05, "momentum": [0.9, 0.8, 0.0], "dampening": [0.0, 0.3, 0.5]}),
    OptimizerRow("SGD", {"lr": 0.01, "maximize": [True, False, True]}),
    OptimizerRow("Adam", {"lr": 0.01}),
    OptimizerRow("Adam", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.0, 0.999)]}),
    OptimizerRow("Adam", {"lr": 0.01, "weight_decay": [0.0, 0.1, 0.2], "amsgrad": [True, False, True]}),
    OptimizerRow("Adam", {"lr": 0.01, "betas": (0.5, 0.9), "maximize": True, "amsgrad": True}),
    OptimizerRow("Adam", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.999)],
                          "eps": [1e-8, 1e-4, 1e-3], "weight_decay": [0.0, 0.1, 0.2], "amsgrad": [True, False, True],
                          "maximize": [False, True, False], "decoupled_weight_decay": [False, True, True]}),
    OptimizerRow("AdamW", {"lr": [0.1, 0.01, 1e-3], "eps": [1e-8, 1e-4, 1e-3]}),
    OptimizerRow("AdamW", {"lr": 0.01, "weight_decay": [0.0, 0.1, 0.5]}),
    OptimizerRow("Adamax", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.999)],
                            "eps": [1e-8, 1e-4, 1e-3], "weight_decay": [0.0, 0.1, 0.2],
                            "maximize": [False, True, False]}),
    OptimizerRow("NAdam", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.999)],
                           "eps": [1e-8, 1e-4, 1e-3], "weight_decay": [0.0, 0.1, 0.2],
                           "momentum_decay": [0.0, 4e-3, 0.1], "decoupled_weight_decay": [False, False, True],
                           "maximize": [False, True, False]}),
    OptimizerRow("RAdam", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.5)],
                           "eps": [1e-8, 1e-4, 1e-3], "weight_decay": [0.0, 0.1, 0.2],
                           "decoupled_weight_decay": [False, True, True], "maximize": [False, True, False]}),
    OptimizerRow("Adadelta", {"lr": [1.0, 0.1, 0.5], "rho": [0.9, 0.5, 0.99], "eps": [1e-6, 1e-3, 1e-4],
                              "weight_decay": [0.0, 0.1, 0.2], "maximize": [False, True, False]}),
    OptimizerRow("Adagrad", {"lr": [0.1, 0.01, 0.5], "lr_decay": [0.0, 0.1, 0.01], "weight_decay": [0.0, 0.1, 0.2],
                             "initial_accumulator_value": [0.0, 0.1, 1.0], "eps": [1e-10, 1e-3, 1e-4],
                             "maximize": [False, True, False]}),
    OptimizerRow("RMSprop", {"lr": [0.01, 0.001, 0.05], "alpha": [0.99, 0.5, 0.9], "eps": [1e-8, 1e-3, 1e-2],
                             "weight_decay": [0.0, 0.1, 0.2], "momentum": [0.0, 0.9, 0.5],
                             "centered": [False, False, True], "maximize": [False, True, False]}),
    OptimizerRow("ASGD", {"lr": [0.1, 0.01, 0.5], "lambd": [1e-4, 0.1, 0.0], "alpha": [0.75, 0.5, 1.0],
                          "t0": [1e6, 5, 0], "weight_decay": [0.0, 0.1, 0.2], "maximize": [False, True, False]}),
    OptimizerRow("Rprop", {"lr": [0.01, 0.001, 0.1], "etas": [(0.5, 1.2), (0.3, 1.5), (0.9, 1.1)],
                           "step_sizes": [(1e-6, 50.0), (1e-4, 0.01), (1e-3, 1.0)],
                           "maximize": [False, True, False]}, float32=1e-3),
    OptimizerRow("Adafactor", {"lr": [0.1, 0.01, 0.5], "beta2_decay": [-0.8, -0.5, -1.0],
                               "eps": [(None, 1e-3), (1e-8, 1e-2), (1e-4, 1e-3)], "d": [1.0, 2.0, 1.5],
                               "weight_decay": [0.0, 0.1, 0.2], "maximize": [False, True, False]}),
    OptimizerRow("Muon", {"lr": [0.1, 0.01, 0.5], "weight_decay": [0.0, 0.1, 0.2], "momentum": [0.95, 0.5, 0.0],
                          "nesterov": [True, False, True],
                          "ns_coefficients": [(3.4445, -4.7750, 2.0315), (3.4, -4.7, 2.0), (3.4, -4.7, 2.0)],
                          "eps": [1e-7, 1e-6, 1e-7], "ns_steps": [5, 3, 6],
                          "adjust_lr_fn": [None, "match_rms_adamw", "original"]}, float32=0.1),
    OptimizerRow("SparseAdam", {"lr": [0.1, 0.01, 1e-3], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.999)],
                                "eps": [1e-8, 1e-4, 1e-3], "maximize": [False, True, False]}),
    OptimizerRow("RowwiseAdagrad", {"lr": [0.1, 0.01, 0.5], "eps": [1e-10, 1e-3, 1e-4]}),
    OptimizerRow("LBFGS", {"lr": [0.1, 1.0, 0.5], "max_iter": [4, 20, 3], "max_eval": [None, 6, None],
                           "tolerance_grad": [1e-7, 1e-2, 1e-5], "tolerance_change": [1e-9, 1e-9, 1e-3],
                           "history_size": [100, 3, 10], "line_search_fn": [None, "strong_wolfe", "strong_wolfe"]},
                 float32=1e-2),
]

LR_SCHEDULERS = [
    OptimizerRow("LambdaLR", {"lr_lambda": [lambda e: 0.9**e, lambda e: 1 / (e + 1), lambda e: 1.0]}),
    OptimizerRow("LambdaLR", {"lr_lambda": lambda e: 0.9**e}),
    OptimizerRow("MultiplicativeLR", {"lr_lambda": [lambda e: 0.9, lambda e: 0.5 + 0.01 * e, lambda e: 1.0]}),
    OptimizerRow("StepLR", {"step_size": [3, 5, 7], "gamma": [0.5, 0.1, 0.9]}),
    OptimizerRow("StepLR", {"step_size": 4}),
    OptimizerRow("MultiStepLR", {"milestones": [3, 5, 9], "gamma": [0.5, 0.1, 0.9]}, lists=("milestones",)),
    OptimizerRow("MultiStepLR", {"milestones": [[3], [5, 6, 7, 8], [2, 9]]}, lists=("milestones",)),
    OptimizerRow("ConstantLR", {"factor": [0.5, 0.1, 0.9], "total_iters": [3, 5, 30]}),
    OptimizerRow("LinearLR", {"start_factor": [0.5, 0.1, 0.9], "end_factor": [1.0, 0.5, 0.1],
                              "total_iters": [3, 5, 30]}),
    OptimizerRow("ExponentialLR", {"gamma": [0.9, 0.5, 1.0]}),
    OptimizerRow("PolynomialLR", {"total_iters": [5, 10, 30], "power": [1.0, 2.0, 0.5]}),
    OptimizerRow("CosineAnnealingLR", {"T_max": [10, 20, 7], "eta_min": [0.0, 1e-3, 0.0]}),
    OptimizerRow("CosineAnnealingLR", {"T_max": 20}),
    OptimizerRow("CosineAnnealingWarmRestarts", {"T_0": [3, 5, 7], "T_mult": [1, 2, 1], "eta_min": [0.0, 1e-3, 0.0]}),
    OptimizerRow("CyclicLR", {"base_lr": [0.01, 0.1, 0.001], "max_lr": [0.1, 0.2, 0.3], "step_size_up": [3, 4, 5],
                              "step_size_down": [None, 2, 5], "mode": ["triangular", "triangular2", "exp_range"],
                              "gamma": [1.0, 1.0, 0.9], "cycle_momentum": [True, False, True],
                              "base_momentum": [0.7, 0.8, 0.5], "max_momentum": [0.9, 0.95, 0.8]}),
    OptimizerRow("OneCycleLR", {"max_lr": [0.1, 0.2, 0.3], "total_steps": [21, 30, 40], "pct_start": [0.3, 0.5, 0.1],
                                "anneal_strategy": ["cos", "linear", "cos"], "cycle_momentum": [True, True, False],
                                "base_momentum": [0.85, 0.5, 0.85], "max_momentum": [0.95, 0.9, 0.9],
                                "div_factor": [25.0, 10.0, 5.0], "three_phase": [False, True, False]}),
    OptimizerRow("ReduceLROnPlateau", {"mode": ["min", "max", "min"], "factor": [0.1, 0.5, 0.9],
                                       "patience": [0, 1, 2], "threshold": [1e-4, 0.1, 0.2],
                                       "threshold_mode": ["rel", "abs", "abs"], "cooldown": [0, 1, 0],
                                       "min_lr": [0.0, 1e-3, 0.05], "eps": [1e-8, 1e-8, 1e-3]}),
]
# fmt: on

CHAOTIC = ("LBFGS", "Muon")
"""Optimizers that make much of the last bit of a gradient (rounded to bfloat16, or steered by a line search): where
that bit is a matter of how a product was summed, they are compared over gradients that are equal to the bit."""

COMPOSED = ("SequentialLR", "ChainedScheduler")
"""Schedulers made of schedulers; tested on their own."""


def numbered(value: Any) -> Any:
    """Tensors as the numbers that they hold: where torch is given a tensor it computes some products in float32."""
    if isinstance(value, Tensor):
        return value.item()
    return tuple(numbered(v) for v in value) if isinstance(value, tuple) else value


def optim_db_rows() -> list[OptimizerRow]:
    """Every optimizer of torch's own list with every sample of its arguments."""
    with thawed():
        from torch.testing._internal.common_optimizers import optim_db

    rows = []
    for info in optim_db:
        for sample in info.optim_inputs_func(device="cpu"):
            given = {k: numbered(v) for k, v in sample.kwargs.items()}
            rows.append(OptimizerRow(info.name, given))
    return rows


def torch_schedulers() -> list[str]:
    """The lr schedulers that torch has."""
    return [name for name in torch_lr.__all__ if name != "LRScheduler"]


def torch_optimizers() -> list[str]:
    """The optimizers that torch has."""
    return [
        name for name in torch.optim.__all__ if name != "Optimizer" and isinstance(getattr(torch.optim, name), type)
    ]
