"""The optimizers and lr schedulers that the training axes offer: classes by their names in torch, and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hfta_nb.errors import OptimError
from hfta_nb.step.protocol import Row

FUSED = ("sgd", "adam", "adamw")
"""Optimizers of which torch has fused kernels that are used."""


def _sgd(row: Row) -> dict[str, Any]:
    return {"momentum": row["momentum"], "nesterov": row["nesterov"]}


def _adam(row: Row) -> dict[str, Any]:
    return {"betas": (row["beta1"], row["beta2"]), "eps": row["eps"]}


def _rmsprop(row: Row) -> dict[str, Any]:
    return {"momentum": row["momentum"], "eps": row["eps"]}


def _nothing(row: Row) -> dict[str, Any]:
    return {}


OPTIMIZERS: dict[str, tuple[str, Callable[[Row], dict[str, Any]]]] = {
    "sgd": ("SGD", _sgd),
    "adam": ("Adam", _adam),
    "adamw": ("AdamW", _adam),
    "nadam": ("NAdam", _adam),
    "radam": ("RAdam", _adam),
    "adamax": ("Adamax", _adam),
    "rmsprop": ("RMSprop", _rmsprop),
    "adagrad": ("Adagrad", _nothing),
    "adadelta": ("Adadelta", _nothing),
}
"""By the axis's value: the class's name, here and in torch, and what it is given beside lr and weight decay."""


def optimizer_of(row: Row) -> tuple[str, dict[str, Any]]:
    """The class's name and the arguments of one member's optimizer.

    Raises:
        OptimError: there is none of this name.
    """
    kind = row["optimizer"]
    if kind not in OPTIMIZERS:
        raise OptimError("unknown optimizer", where="optimizer", got=kind, accepted=", ".join(OPTIMIZERS))
    name, more = OPTIMIZERS[kind]
    return name, {"lr": row["lr"], "weight_decay": row["weight_decay"], **more(row)}


LR_SCHEDULERS: dict[str, tuple[str, Callable[[Row, int], dict[str, Any]]]] = {
    "step": ("StepLR", lambda row, epochs: {"step_size": row["step_size"], "gamma": row["gamma"]}),
    "exponential": ("ExponentialLR", lambda row, epochs: {"gamma": row["gamma"]}),
    "linear": (
        "LinearLR",
        lambda row, epochs: {"start_factor": 1.0, "end_factor": 0.0, "total_iters": row["t_max"] or epochs},
    ),
    "cosine": (
        "CosineAnnealingLR",
        lambda row, epochs: {"T_max": row["t_max"] or epochs, "eta_min": row["eta_min"]},
    ),
    "cosine_restarts": (
        "CosineAnnealingWarmRestarts",
        lambda row, epochs: {"T_0": row["t_max"] or epochs, "eta_min": row["eta_min"]},
    ),
}
"""By the axis's value: the class's name, here and in torch, and what it is given in a run of so many epochs."""


def lr_scheduler_of(row: Row, epochs: int) -> tuple[str, dict[str, Any]] | None:
    """The class's name and the arguments of one member's lr scheduler; None for "none"."""
    if row["lr_scheduler"] not in LR_SCHEDULERS:
        return None
    name, given = LR_SCHEDULERS[row["lr_scheduler"]]
    return name, given(row, epochs)
