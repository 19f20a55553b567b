"""The optimizers and lr schedulers of a script: which torch classes, for which parameters, with which arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hfta_nb import optim
from hfta_nb.errors import StudyError
from hfta_nb.models.phases import Phase, split
from hfta_nb.models.recipes import Family
from hfta_nb.train.step.choices import Schedule, by_step, optimizer_of, schedule_of
from hfta_nb.train.step.parameter_groups import by_optimizer, groups_of, values_of

_OTHER_LOOPS = {
    "lbfgs": "evaluates the loss several times in a step",
    "sparse_adam": "takes sparse gradients, which the run makes of dense ones",
}


@dataclass(frozen=True)
class Update:
    """One optimizer step of the script's loop.

    Attributes:
        phase: of a step with phases; None without.
        optimizers: expressions, by the name of the variable.
        schedulers: likewise of lr schedulers, and of what they are made of.
        schedules: the names of those that the loop steps.
        max_norm: to which gradients are clipped; None for no clipping.
    """

    phase: Phase | None
    optimizers: Mapping[str, str]
    schedulers: Mapping[str, str]
    schedules: Sequence[str]
    max_norm: float | None


def updates_of(family: Family, module: nn.Module, row: Mapping[str, Any], epochs: int, length: int) -> list[Update]:
    """The updates of a step, in their order.

    Args:
        family: of the member.
        module: a plain module of it.
        row: the values of its training axes.
        epochs, length: planned epochs, and steps of an epoch, for lr schedulers.

    Raises:
        StudyError: the optimizer needs another loop than a script's.
    """
    if row["optimizer"] in _OTHER_LOOPS:
        raise StudyError(f"{row['optimizer']} {_OTHER_LOOPS[row['optimizer']]}", where="optimizer",
                         got=row["optimizer"], accepted="an optimizer that steps once per mini-batch")  # fmt: skip
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    if not family.phases:
        return [_update(module, None, trained, row, epochs, length)]
    shares = split(family.phases, module, "phases")
    return [
        _update(module, phase, names, phase.row(row), epochs, length)
        for phase, names in zip(family.phases, shares, strict=True)
    ]


def _update(
    module: nn.Module, phase: Phase | None, trained: list[str], row: Mapping[str, Any], epochs: int, length: int
) -> Update:
    optimizers, made_of, names = dict[str, str](), dict[str, str](), list[str]()
    for number, (taken, own) in enumerate(by_optimizer(module, trained, row)):
        prefix = (f"{phase.name}_" if phase else "") + ("other_" if number else "")
        kind, given = optimizer_of(own)
        made = getattr(optim, kind).torch_class
        if not made.__module__.startswith("torch."):
            raise StudyError("is no optimizer of torch", where="optimizer", got=kind)
        parameters = _parameters(module, phase, taken, own, given)
        optimizers[f"{prefix}optimizer"] = _call(f"torch.optim.{kind}", parameters, given)
        schedule = schedule_of(own, epochs, length)
        if schedule is not None:
            made_of |= _schedules(prefix, schedule)
            names.append(f"{prefix}schedule")
    return Update(phase, optimizers, made_of, names, row.get("max_norm"))


def _parameters(
    module: nn.Module, phase: Phase | None, names: list[str], row: Mapping[str, Any], given: dict[str, Any]
) -> str:
    """What the optimizer's constructor gets first."""
    groups, every = groups_of(module, names, row), [name for name, _ in module.named_parameters()]
    if len(groups) == 1 and not values_of(groups[0][1], given):
        if names == every:
            return "model.parameters()"
        within = tuple(f"{name}." for name in phase.trains) if phase else ()
        if names == [name for name in every if name.startswith(within)]:
            return f"[p for name, p in parameters.items() if name.startswith({within!r})]"
    parts = []
    for members, own in groups:
        listed = ", ".join(map(repr, members)) + ("," if len(members) == 1 else "")
        more = "".join(f', "{name}": {value!r}' for name, value in values_of(own, given).items())
        parts.append(f'{{"params": [parameters[name] for name in ({listed})]{more}}}')
    return f"[{', '.join(parts)}]"


def _schedules(prefix: str, found: Schedule) -> dict[str, str]:
    """By the name of the variable: of a warm-up as well, which the schedule goes through first."""
    optimizer, name = f"{prefix}optimizer", f"{prefix}schedule"
    rest = _call(f"lr_scheduler.{found.name}", optimizer, found.arguments)
    if not found.warmup:
        return {name: rest}
    rising = {"start_factor": 1 / (found.warmup + 1), "end_factor": 1.0, "total_iters": found.warmup}
    both = f"[{prefix}rising, {prefix}falling]"
    return {
        f"{prefix}rising": _call("lr_scheduler.LinearLR", optimizer, rising),
        f"{prefix}falling": rest,
        name: f"lr_scheduler.SequentialLR({optimizer}, {both}, milestones=[{found.warmup}])",
    }


def _call(function: str, first: str, given: Mapping[str, Any]) -> str:
    return f"{function}({', '.join([first, *(f'{name}={value!r}' for name, value in given.items())])})"


def when(row: Mapping[str, Any]) -> str:
    """When lr schedulers go on: after each "step", "epoch" or "validation"."""
    if row.get("lr_scheduler") == "plateau":
        return "validation"
    return "step" if by_step(row) else "epoch"


def averaged(row: Mapping[str, Any]) -> str | None:
    """The expression of an average of the weights; None where the member has none."""
    decay = row.get("ema_decay")
    if decay is None:
        return None
    return f"swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn({decay!r}))"
