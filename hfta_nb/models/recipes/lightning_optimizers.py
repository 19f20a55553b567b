"""Reads the optimizer and lr scheduler of a `LightningModule` as values of the training axes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from hfta_nb.errors import FamilyError
from hfta_nb.models.training_axes import LR_SCHEDULERS, OPTIMIZERS

_HOW = ("foreach", "fused", "capturable", "differentiable", "maximize", "decoupled_weight_decay")
"""How an optimizer computes, but for `maximize`, which has its default where it is not refused."""

_SCHEDULES = {
    "StepLR": {"step_size": "step_size", "gamma": "gamma"},
    "ExponentialLR": {"gamma": "gamma"},
    "CosineAnnealingLR": {"T_max": "t_max", "eta_min": "eta_min"},
}
"""By class of lr schedulers, its attributes and the axes that they are."""


def training_defaults(module: Any, where: str) -> dict[str, Any]:
    """The defaults of training axes that `configure_optimizers` stands for.

    Args:
        module: with the defaults of its constructor.
        where: the name of its class.

    Raises:
        FamilyError: it returns several optimizers, or one that no values of the axes give.
    """
    place = f"{where}.configure_optimizers"
    optimizer, scheduler = _parts(module.configure_optimizers(), place)
    found = {v: choice for v, choice in OPTIMIZERS.items() if choice.name == type(optimizer).__name__}
    if not found or type(optimizer) is not getattr(torch.optim, type(optimizer).__name__, None):
        raise FamilyError("its optimizer is not known", where=place, got=type(optimizer).__name__,
                          accepted=", ".join(choice.name for choice in OPTIMIZERS.values()))  # fmt: skip
    ((name, choice),) = found.items()
    values = _settings(optimizer, place)
    _check_all(optimizer, module, place)
    if "betas" in values:
        values["beta1"], values["beta2"] = values.pop("betas")
    usual = {n: p.default for n, p in inspect.signature(type(optimizer)).parameters.items()}
    defaults: dict[str, Any] = {"optimizer": name, "lr": float(values.pop("lr"))}
    for key, value in values.items():
        if key in choice.axes:
            defaults[key] = value
        elif key not in _HOW and key in usual and value != usual[key]:
            raise FamilyError(f"has no axis for {key}", where=place, got=value, accepted=str(usual[key]))
    return defaults | _schedule(scheduler, place)


def _parts(given: Any, where: str) -> tuple[Any, Any]:
    """The one optimizer, and the one lr scheduler or None."""
    scheduler: Any = None
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, list | tuple) for part in given):
        given, schedulers = given
        scheduler = schedulers[0] if len(schedulers) == 1 else schedulers or None
    if isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    if isinstance(given, Mapping):
        given, scheduler = given.get("optimizer"), given.get("lr_scheduler")
    if not isinstance(given, torch.optim.Optimizer):
        several = isinstance(given, list | tuple)
        raise FamilyError("several optimizers can't be fused" if several else "no optimizer", where=where, got=given,
                          accepted="one optimizer, and an lr scheduler",
                          remedy="a family with phases has one for each: hfta_nb.Phase" if several else "")  # fmt: skip
    return given, scheduler


def _settings(optimizer: Any, where: str) -> dict[str, Any]:
    """The hyperparameters of the one group."""
    groups = [{k: v for k, v in group.items() if k not in ("params", "initial_lr")} for group in optimizer.param_groups]
    if len(groups) > 1:
        raise FamilyError("several parameter groups", where=where, got=len(groups), accepted="one",
                          remedy="give Study(..., param_groups=...)")  # fmt: skip
    return {**groups[0], "lr": groups[0].get("lr"), **_initial(optimizer)}


def _initial(optimizer: Any) -> dict[str, Any]:
    """The lr before a scheduler has changed it."""
    first = optimizer.param_groups[0].get("initial_lr")
    return {} if first is None else {"lr": first}


def _check_all(optimizer: Any, module: Any, where: str) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    apart = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in held]
    if apart:
        raise FamilyError("leaves out parameters that are trained", where=where, got=apart,
                          remedy="set requires_grad=False on them")  # fmt: skip


def _schedule(given: Any, where: str) -> dict[str, Any]:
    """The axes of an lr scheduler that steps once an epoch."""
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    scheduler = settings.pop("scheduler", None)
    if scheduler is None:
        return {}
    kind = type(scheduler).__name__
    names = {choice.name: value for value, choice in LR_SCHEDULERS.items()}
    unlike = {k: v for k, v in settings.items() if (k, v) not in (("interval", "epoch"), ("frequency", 1), ("name", v))}
    if kind not in _SCHEDULES or unlike:
        raise FamilyError("its lr scheduler is not read", where=where, got=unlike or kind,
                          accepted=f"{', '.join(_SCHEDULES)}, once an epoch",
                          remedy='leave it out, and give lr_scheduler="..." to the study')  # fmt: skip
    axes = {axis: getattr(scheduler, attribute) for attribute, axis in _SCHEDULES[kind].items()}
    return {"lr_scheduler": names[kind], **axes}
