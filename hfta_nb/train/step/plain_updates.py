"""The optimizers of one plain module, torch's own, each with what it minimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb import optim
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase, split
from hfta_nb.optim.fused_kernels import available
from hfta_nb.optim.without_compiler import without_compiler
from hfta_nb.train.step.choices import FUSED, factory_of, optimizer_of
from hfta_nb.train.step.parameter_groups import by_optimizer, groups_of, values_of
from hfta_nb.train.step.step_protocol import Objective, Row, Scores, phases_of, remedied, scorer


@dataclass
class PlainUpdate:
    """One of torch's optimizers, with what it minimises; see `update.Update`."""

    phase: Phase | None
    score: Callable[[Any, Any], tuple[Tensor, Scores]]
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None
    limit: float | None = None
    follows: bool = False


def updates_of(
    module: nn.Module,
    row: Row,
    objective: Objective,
    metrics: Mapping[str, Metric],
    epochs: int,
    steps_per_epoch: int | None,
) -> list[PlainUpdate]:
    """See `update.updates_of`."""
    phases = phases_of(objective)
    parts: list[tuple[Phase | None, Any, list[str], Row]] = []
    if callable(objective):
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        parts.append((None, scorer(remedied(objective, [row]), metrics), names, row))
    for each, names in zip(phases, split(phases, module, "phases") if phases else [], strict=True):
        parts.append((each, scorer(each.loss, {}), names, each.row(row)))
    found = []
    for phase, score, names, own in parts:
        for number, (taken, kind) in enumerate(by_optimizer(module, names, own)):
            optimizer = _make_optimizer(module, taken, kind)
            factory = factory_of(kind, epochs, steps_per_epoch)
            schedule = None if factory is None else factory(optimizer)
            limit = None if number else kind.get("max_norm")
            found.append(PlainUpdate(phase, score, optimizer, schedule, limit, follows=number > 0))
    return found


def _make_optimizer(module: nn.Module, names: Sequence[str], row: Row) -> torch.optim.Optimizer:
    name, given = optimizer_of(row)
    named = dict(module.named_parameters())
    if row["optimizer"] in FUSED:
        given["fused"] = available([named[n] for n in names])
    groups = [
        {"params": [named[n] for n in members], **values_of(own, given)}
        for members, own in groups_of(module, names, row)
    ]
    return without_compiler(getattr(optim, name).torch_class)(groups, **given)  # type: ignore[no-any-return]


def sparsify(optimizer: torch.optim.Optimizer) -> None:
    """The rows that a step has touched, for an optimizer that takes no dense gradients."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and not p.grad.is_sparse:
                p.grad = p.grad.to_sparse(1) if p.grad.ndim else p.grad.to_sparse()
