"""The axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""

from __future__ import annotations

from hfta_nb.grid import AxisSpec

_ADAMS = ("adam", "adamw", "nadam", "radam", "adamax")

OPTIMIZERS = ("sgd", *_ADAMS, "rmsprop", "adagrad", "adadelta")
"""What is not an axis is as in torch: rmsprop's alpha, adadelta's rho and eps, nadam's momentum decay, ..."""

LR_SCHEDULERS = ("none", "step", "cosine", "exponential", "linear", "cosine_restarts")

_AXES = [
    AxisSpec("lr", "float", 1e-3, low=0.0, help="Learning rate.", fusible=True),
    AxisSpec("optimizer", "str", "adam", OPTIMIZERS, help="The optimizer."),
    AxisSpec("weight_decay", "float", 0.0, low=0.0, help="L2 penalty; for adamw, decoupled decay.", fusible=True),
    AxisSpec("momentum", "float", 0.0, low=0.0, help="Momentum of sgd and rmsprop.", fusible=True),
    AxisSpec("nesterov", "bool", False, help="Nesterov momentum, for sgd.", fusible=True),
    AxisSpec("beta1", "float", 0.9, low=0.0, high=1.0, help="First beta of adam and its kin.", fusible=True),
    AxisSpec("beta2", "float", 0.999, low=0.0, high=1.0, help="Second beta of adam and its kin.", fusible=True),
    AxisSpec("eps", "float", 1e-8, low=0.0, help="Epsilon of adam and its kin, and of rmsprop.", fusible=True),
    AxisSpec("max_norm", "float", None, low=0.0, help="Norm to which longer gradients are clipped.", fusible=True),
    AxisSpec("lr_scheduler", "str", "none", LR_SCHEDULERS, help="How lr changes over the epochs."),
    AxisSpec("step_size", "int", 10, low=1, help="Epochs between two drops of lr, for step.", fusible=True),
    AxisSpec(
        "gamma",
        "float",
        0.1,
        low=0.0,
        help="Factor of each drop of lr, for step; of each epoch, for exponential.",
        fusible=True,
    ),
    AxisSpec(
        "t_max",
        "int",
        None,
        low=1,
        help="Epochs of the cosine, of one before it restarts, or of the way to 0; all by default.",
        fusible=True,
    ),
    AxisSpec("eta_min", "float", 0.0, low=0.0, help="Last lr of the cosine.", fusible=True),
    AxisSpec("batch_size", "int", 64, low=1, help="Samples in a mini-batch."),
    AxisSpec("seed", "int", 0, low=0, help="Seed of initialisation and of all that the member draws.", fusible=True),
    AxisSpec(
        "data_seed", "int", None, low=0, help="Seed of the order of the data; the study's by default.", fusible=True
    ),
]

TRAINING_AXES: dict[str, AxisSpec] = {a.name: a for a in _AXES}
"""Axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""

USED_BY: dict[str, tuple[str, frozenset[str]]] = {
    "momentum": ("optimizer", frozenset({"sgd", "rmsprop"})),
    "nesterov": ("optimizer", frozenset({"sgd"})),
    **dict.fromkeys(("beta1", "beta2"), ("optimizer", frozenset(_ADAMS))),
    "eps": ("optimizer", frozenset({*_ADAMS, "rmsprop"})),
    "step_size": ("lr_scheduler", frozenset({"step"})),
    "gamma": ("lr_scheduler", frozenset({"step", "exponential"})),
    "t_max": ("lr_scheduler", frozenset({"cosine", "linear", "cosine_restarts"})),
    "eta_min": ("lr_scheduler", frozenset({"cosine", "cosine_restarts"})),
}
"""Axes that do nothing unless another axis has one of these values."""
