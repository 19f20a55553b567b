"""The axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""

from __future__ import annotations

from hfta_nb.grid import AxisSpec

_AXES = [
    AxisSpec("lr", "float", 1e-3, low=0.0, help="Learning rate.", fusible=True),
    AxisSpec("optimizer", "str", "adam", ("sgd", "adam", "adamw"), help="The optimizer."),
    AxisSpec("weight_decay", "float", 0.0, low=0.0, help="L2 penalty; for adamw, decoupled decay.", fusible=True),
    AxisSpec("momentum", "float", 0.0, low=0.0, help="Momentum of sgd.", fusible=True),
    AxisSpec("nesterov", "bool", False, help="Nesterov momentum, for sgd.", fusible=True),
    AxisSpec("beta1", "float", 0.9, low=0.0, high=1.0, help="First beta of adam and adamw.", fusible=True),
    AxisSpec("beta2", "float", 0.999, low=0.0, high=1.0, help="Second beta of adam and adamw.", fusible=True),
    AxisSpec("eps", "float", 1e-8, low=0.0, help="Epsilon of adam and adamw.", fusible=True),
    AxisSpec("max_norm", "float", None, low=0.0, help="Norm to which longer gradients are clipped.", fusible=True),
    AxisSpec("lr_scheduler", "str", "none", ("none", "step", "cosine"), help="How lr changes over the epochs."),
    AxisSpec("step_size", "int", 10, low=1, help="Epochs between two drops of lr, for step.", fusible=True),
    AxisSpec("gamma", "float", 0.1, low=0.0, help="Factor of each drop of lr, for step.", fusible=True),
    AxisSpec("t_max", "int", None, low=1, help="Epochs of the cosine; all by default.", fusible=True),
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
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer", frozenset({"sgd"}))),
    **dict.fromkeys(("beta1", "beta2", "eps"), ("optimizer", frozenset({"adam", "adamw"}))),
    **dict.fromkeys(("step_size", "gamma"), ("lr_scheduler", frozenset({"step"}))),
    **dict.fromkeys(("t_max", "eta_min"), ("lr_scheduler", frozenset({"cosine"}))),
}
"""Axes that do nothing unless another axis has one of these values."""
