"""What the optimizers and lr schedulers that the training axes offer are given: names of classes, and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import lr_scheduler as reference

from hfta_nb.errors import OptimError
from hfta_nb.models.training_axes import LR_SCHEDULERS, OPTIMIZERS
from hfta_nb.train.step.accumulation import updates
from hfta_nb.train.step.step_protocol import Row

FUSED = ("sgd", "adam", "adamw")
"""Optimizers of which torch has fused kernels that are used."""


def optimizer_of(row: Row) -> tuple[str, dict[str, Any]]:
    """The class's name and the arguments of one member's optimizer.

    Raises:
        OptimError: there is none of this name.
    """
    kind = row["optimizer"]
    if kind not in OPTIMIZERS:
        raise OptimError("unknown optimizer", where="optimizer", got=kind, accepted=", ".join(OPTIMIZERS))
    given = {"lr": row["lr"]}
    for axis in OPTIMIZERS[kind].axes:
        if axis == "beta1":
            given["betas"] = row["beta1"], row["beta2"]
        elif axis != "beta2":
            given[axis] = row[axis]
    return OPTIMIZERS[kind].name, given


def beside(row: Row) -> dict[str, Any] | None:
    """The row of the optimizer that trains the parameters which this row's does not take; None where it takes all."""
    choice = OPTIMIZERS.get(row["optimizer"])
    return {**row, "optimizer": choice.beside} if choice is not None and choice.beside is not None else None


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


_LR_ARGUMENTS: dict[str, Callable[[Row, ScheduleLength], dict[str, Any]]] = {
    "step": lambda row, span: {"step_size": row["step_size"] * span.epoch, "gamma": row["gamma"]},
    "exponential": lambda row, span: {"gamma": row["gamma"] ** (1 / span.epoch)},
    "linear": lambda row, span: {"start_factor": 1.0, "end_factor": 0.0, "total_iters": _length(row, span)},
    "polynomial": lambda row, span: {"total_iters": _length(row, span), "power": row["power"]},
    "cosine": lambda row, span: {"T_max": _length(row, span), "eta_min": _lowest(row)},
    "cosine_restarts": lambda row, span: {"T_0": _length(row, span), "eta_min": _lowest(row)},
    "onecycle": lambda row, span: {"max_lr": row["lr"], "total_steps": span.total, "pct_start": row["pct_start"]},
    "sequential": lambda row, span: {"milestones": [row["step_size"] * span.epoch]},
    "multistep": lambda row, span: {"milestones": _milestones(row, span), "gamma": row["gamma"]},
    "constant": lambda row, span: {"factor": row["gamma"], "total_iters": row["step_size"] * span.epoch},
    "cyclic": lambda row, span: {
        **{"base_lr": _lowest(row), "max_lr": row["lr"], "step_size_up": row["step_size"] * span.epoch},
        "cycle_momentum": False,
    },
    # Any improvement counts, so that a metric that is to rise may be given with its sign turned.
    "plateau": lambda row, span: {
        **{"factor": row["gamma"], "patience": row["plateau_patience"], "min_lr": _lowest(row)},
        **{"threshold": 0.0, "threshold_mode": "abs"},
    },
}
"""By the axis's value: what the class is given in a run of this length.

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
    kind = row["lr_scheduler"]
    return LR_SCHEDULERS[kind].name, _LR_ARGUMENTS[kind](row, _span(row, epochs, steps_per_epoch))


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


class Schedule(NamedTuple):
    """A member's lr scheduler: a linear warm-up of so many steps, and the class that follows with its arguments.

    A warm-up of w steps goes linearly to lr, which step number w (from 0) has.
    """

    warmup: int
    name: str
    arguments: dict[str, Any]


def schedule_of(row: Row, epochs: int, steps_per_epoch: int | None = None) -> Schedule | None:
    """A member's lr scheduler, warm-up and all, in torch's classes; None for no schedule.

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
    if found is None:
        return Schedule(warmup or 0, "ConstantLR", {"factor": 1.0, "total_iters": 0})
    name, given = found
    if name != "SequentialLR":
        return Schedule(warmup or 0, name, given)
    rising = 0 if warmup else min(given["milestones"][0], span.total - 1)
    rest = {"T_max": span.total - rising, "eta_min": _lowest(row)}
    return Schedule(warmup or rising, "CosineAnnealingLR", rest)


def factory_of(row: Row, epochs: int, steps_per_epoch: int | None = None) -> Factory | None:
    """What makes a member's lr scheduler; None for no schedule.

    Raises:
        OptimError: see `lr_scheduler_of`.
    """
    found = schedule_of(row, epochs, steps_per_epoch)
    return None if found is None else lambda optimizer: _made(found, optimizer)


def _made(found: Schedule, optimizer: torch.optim.Optimizer) -> reference.LRScheduler:
    kind, steps = getattr(reference, found.name), found.warmup
    if not steps:
        return kind(optimizer, **found.arguments)  # type: ignore[no-any-return]
    rising = reference.LinearLR(optimizer, start_factor=1 / (steps + 1), end_factor=1.0, total_iters=steps)
    return reference.SequentialLR(optimizer, [rising, kind(optimizer, **found.arguments)], milestones=[steps])
