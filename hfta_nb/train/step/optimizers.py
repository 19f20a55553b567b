"""An array's optimizers, lr schedulers and clipping, as the training axes of its members name them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb import optim
from hfta_nb.engine.array import FusedArray
from hfta_nb.optim.fused_kernels import available
from hfta_nb.optim.lr_scheduler import ArrayLRScheduler
from hfta_nb.train.step.choices import FUSED, by_step, factory_of, lr_scheduler_of, optimizer_of
from hfta_nb.train.step.parameter_groups import groups_of, values_of
from hfta_nb.train.step.step_protocol import Row


def make_optimizer(array: FusedArray, names: Sequence[str] | None, rows: Sequence[Row]) -> optim.ArrayOptimizer:
    """The optimizer that the rows name, with a value per member, of an array or some of its parameters.

    On a CPU by torch's fused kernels, as in `PlainStep`, where there are such.
    """
    (name, *_), given = zip(*map(optimizer_of, rows), strict=True)
    made = getattr(optim, name)
    params, own = _params(array, names, rows, given), list(array.parameters())
    if names is not None:
        own = [array.get_parameter(n) for n in names]
    fused = available(own)
    columns = {key: [one[key] for one in given] for key in given[0]}
    kind = rows[0]["optimizer"]
    if kind not in FUSED:
        return made(params, **columns)  # type: ignore[no-any-return]
    return made(params, fused=fused, **columns)  # type: ignore[no-any-return]


def _params(array: FusedArray, names: Sequence[str] | None, rows: Sequence[Row], given: Sequence[Any]) -> Any:
    """The parameters as the optimizer's constructor takes them."""
    every = [n for n, _ in array.named_parameters()] if names is None else list(names)
    groups = groups_of(array, every, rows[0])
    if len(groups) == 1 and not groups[0][1]:
        return array if names is None else [array.get_parameter(n) for n in every]
    found: list[dict[str, Any]] = []
    for members, own in groups:
        values = [values_of(own, one) for one in given]
        columns = {key: [one[key] for one in values] for key in values[0]}
        params: list[nn.Parameter] = [array.get_parameter(n) for n in members]
        found.append({"params": params, **columns})
    return found


def limits_of(rows: Sequence[Row], device: torch.device) -> Tensor | None:
    """The norm to which each member's gradients are clipped, ``[M]``, infinite for none; None where all are."""
    limits = [row.get("max_norm") for row in rows]
    if all(limit is None for limit in limits):
        return None
    return torch.tensor([math.inf if v is None else v for v in limits], dtype=torch.float64, device=device)


def make_lr_scheduler(
    optimizer: optim.ArrayOptimizer, rows: Sequence[Row], epochs: int, steps_per_epoch: int | None = None
) -> ArrayLRScheduler | None:
    """The lr scheduler that the rows name, with a setting per member; None for "none"."""
    if by_step(rows[0]) or rows[0]["lr_scheduler"] == "sequential":
        factories = [factory_of(row, epochs, steps_per_epoch) for row in rows]
        return optim.lr_scheduler.ByMember(optimizer, [f for f in factories if f is not None])
    given = [lr_scheduler_of(row, epochs) for row in rows]
    if given[0] is None:
        return None
    settings = [one[1] for one in given if one is not None]
    made = getattr(optim.lr_scheduler, given[0][0])
    return made(optimizer, **{key: [one[key] for one in settings] for key in settings[0]})  # type: ignore[no-any-return]
