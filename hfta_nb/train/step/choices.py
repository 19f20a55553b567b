"""The optimizers and lr schedulers that the training axes offer: classes by their names in torch, and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import lr_scheduler as reference

from hfta_nb.errors import OptimError
from hfta_nb.train.step.accumulation import updates
from hfta_nb.train.step.step_protocol import Row

FUSED = ("sgd", "adam", "adamw")
"""Optimizers of which torch has fused kernels that are used."""

WITHOUT_DECAY = ("rprop", "sparse_adam", "lbfgs")
"""Optimizers that have no weight decay."""

BESIDE_MUON = "adamw"
"""What trains the parameters that Muon does not take: all but matrices, and embeddings."""


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
    "adafactor": ("Adafactor", _nothing),
    "asgd": ("ASGD", _nothing),
    "rprop": ("Rprop", _nothing),
    "sparse_adam": ("SparseAdam", _adam),
    "muon": ("Muon", _nothing),
    "lbfgs": ("LBFGS", _nothing),
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
    decay = {} if kind in WITHOUT_DECAY else {"weight_decay": row["weight_decay"]}
    return name, {"lr": row["lr"], **decay, **more(row)}


def check_scaled(rows: Sequence[Row], scaled: bool) -> None:
    """See that an optimizer that evaluates losses itself is not to scale them.

    Raises:
        OptimError: it is.
    """
    if scaled and rows[0]["optimizer"] == "lbfgs":
        raise OptimError("takes no loss scale", where="optimizer, lbfgs", got="precision fp16", accepted="fp32, bf16")


class ScheduleLength(NamedTuple):
    """How long an lr schedule is.

    Attributes:
        total: its steps, after a warm-up.
        epoch: how many of them an epoch has: 1 where it goes on once an epoch.
    """

    total: int
    epoch: int = 1


def _length(row: Row, span: ScheduleLength) -> int:
    return row["t_max"] * span.epoch if row["t_max"] else span.total


def _lowest(row: Row) -> float:
    return float(row["eta_min"] if row.get("min_lr") is None else row["min_lr"])


def _milestones(row: Row, span: ScheduleLength) -> list[int]:
    if row.get("milestones") is not None:
        return [number * span.epoch for number in row["milestones"]]
    return sorted({max(1, span.total // 2), max(1, span.total * 3 // 4)})


LR_SCHEDULERS: dict[str, tuple[str, Callable[[Row, ScheduleLength], dict[str, Any]]]] = {
    "step": ("StepLR", lambda row, span: {"step_size": row["step_size"] * span.epoch, "gamma": row["gamma"]}),
    "exponential": ("ExponentialLR", lambda row, span: {"gamma": row["gamma"] ** (1 / span.epoch)}),
    "linear": (
        "LinearLR",
        lambda row, span: {"start_factor": 1.0, "end_factor": 0.0, "total_iters": _length(row, span)},
    ),
    "polynomial": ("PolynomialLR", lambda row, span: {"total_iters": _length(row, span), "power": row["power"]}),
    "cosine": ("CosineAnnealingLR", lambda row, span: {"T_max": _length(row, span), "eta_min": _lowest(row)}),
    "cosine_restarts": (
        "CosineAnnealingWarmRestarts",
        lambda row, span: {"T_0": _length(row, span), "eta_min": _lowest(row)},
    ),
    "onecycle": (
        "OneCycleLR",
        lambda row, span: {"max_lr": row["lr"], "total_steps": span.total, "pct_start": row["pct_start"]},
    ),
    "sequential": ("SequentialLR", lambda row, span: {"milestones": [row["step_size"] * span.epoch]}),
    "multistep": ("MultiStepLR", lambda row, span: {"milestones": _milestones(row, span), "gamma": row["gamma"]}),
    "constant": (
        "ConstantLR",
        lambda row, span: {"factor": row["gamma"], "total_iters": row["step_size"] * span.epoch},
    ),
    "cyclic": (
        "CyclicLR",
        lambda row, span: {
            **{"base_lr": _lowest(row), "max_lr": row["lr"], "step_size_up": row["step_size"] * span.epoch},
            "cycle_momentum": False,
        },
    ),
    # Any improvement counts, so that a metric that is to rise may be given with its sign turned.
    "plateau": (
        "ReduceLROnPlateau",
        lambda row, span: {
            **{"factor": row["gamma"], "patience": row["plateau_patience"], "min_lr": _lowest(row)},
            **{"threshold": 0.0, "threshold_mode": "abs"},
        },
    ),
}
"""By the axis's value: the class's name, here and in torch, and what it is given in a run of this length.

"sequential" is a linear warm-up over `step_size` epochs, or `warmup_steps` steps, and then half a cosine."""

BY_STEP = ("onecycle", "cyclic")
"""Schedules that go on with every optimizer step, as torch's documentation has it."""


def by_step(row: Row) -> bool:
    """Whether a member's lr changes with every optimizer step, instead of once an epoch."""
    return row.get("warmup_steps") is not None or row.get("lr_scheduler") in BY_STEP


def lr_scheduler_of(row: Row, epochs: int, steps_per_epoch: int | None = None) -> tuple[str, dict[str, Any]] | None:
    """The class's name and the arguments of one member's lr scheduler, without a warm-up; None for "none".

    Raises:
        OptimError: the schedule counts steps, and nobody knows how many an epoch has; or the warm-up leaves none.
    """
    if row["lr_scheduler"] not in LR_SCHEDULERS:
        return None
    name, given = LR_SCHEDULERS[row["lr_scheduler"]]
    return name, given(row, _span(row, epochs, steps_per_epoch))


def _span(row: Row, epochs: int, steps_per_epoch: int | None) -> ScheduleLength:
    if not by_step(row):
        return ScheduleLength(epochs)
    if steps_per_epoch is None:
        raise OptimError(
            "counts optimizer steps, and how many an epoch has is not known",
            where="warmup_steps" if row.get("warmup_steps") is not None else "lr_scheduler",
            got=row["lr_scheduler"],
            remedy="say it: Study(steps_per_epoch=...)",
        )
    steps_per_epoch = updates(row, steps_per_epoch, steps_per_epoch)
    total, warmup = epochs * steps_per_epoch, row.get("warmup_steps") or 0
    if warmup >= total:
        raise OptimError("no shorter than the run", where="warmup_steps", got=warmup,
                         accepted=f"fewer than the {total} optimizer steps of the run")  # fmt: skip
    return ScheduleLength(total - warmup, steps_per_epoch)


Factory = Callable[[torch.optim.Optimizer], reference.LRScheduler]

_NO_WARMUP = {
    "onecycle": "it has a warm-up of its own: set its length by pct_start",
    "cyclic": "it begins with its lowest lr",
    "plateau": "leave one of them out: it goes on with validations, and a warm-up with optimizer steps",
}
"""Schedules without a warm-up, and what to do."""


def factory_of(row: Row, epochs: int, steps_per_epoch: int | None = None) -> Factory | None:
    """What makes a member's lr scheduler, warm-up and all, of torch's classes; None for no schedule.

    A warm-up of w steps goes linearly to lr, which step number w (from 0) has.

    Raises:
        OptimError: see `lr_scheduler_of`.
    """
    found, warmup = lr_scheduler_of(row, epochs, steps_per_epoch), row.get("warmup_steps")
    if found is None and warmup is None:
        return None
    span = _span(row, epochs, steps_per_epoch)
    remedy = _NO_WARMUP.get(row["lr_scheduler"])
    if warmup and remedy is not None:
        raise OptimError(f"{row['lr_scheduler']} takes none", where="warmup_steps", got=warmup, remedy=remedy)

    def after(optimizer: torch.optim.Optimizer) -> reference.LRScheduler:
        if found is None:
            return reference.ConstantLR(optimizer, factor=1.0, total_iters=0)
        name, given = found
        if name != "SequentialLR":
            return getattr(reference, name)(optimizer, **given)  # type: ignore[no-any-return]
        rising = 0 if warmup else min(given["milestones"][0], span.total - 1)
        rest = reference.CosineAnnealingLR
        return _warmed(optimizer, rising, lambda o: rest(o, T_max=span.total - rising, eta_min=_lowest(row)))

    return lambda optimizer: _warmed(optimizer, warmup or 0, after)


def _warmed(optimizer: torch.optim.Optimizer, steps: int, after: Factory) -> reference.LRScheduler:
    """A linear warm-up over so many steps, and then the other schedule."""
    if not steps:
        return after(optimizer)
    rising = reference.LinearLR(optimizer, start_factor=1 / (steps + 1), end_factor=1.0, total_iters=steps)
    return reference.SequentialLR(optimizer, [rising, after(optimizer)], milestones=[steps])
