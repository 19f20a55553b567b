"""Likenesses of an array's optimizer, one per member, for torch's own lr schedulers to work on.

A torch scheduler reads and writes the values of an optimizer's groups. Each member gets an optimizer that has groups
and values but nothing to train; what a scheduler writes there is written back to the array's groups as one value per
member.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hfta_nb.optim.base import ArrayOptimizer


class Carrier(torch.optim.Optimizer):
    """Groups of values without parameters that learn."""

    _opt_called = True  # torch warns where a scheduler outruns its optimizer, which never steps here

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__([{"params": [nn.Parameter(torch.zeros(()))], **g} for g in groups], dict(defaults))

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """There is nothing to do."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # so that no scheduler wraps it, once for each copy

    def copied(self) -> Carrier:
        """Another one with the same values."""
        groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in self.param_groups]
        return Carrier(groups, self.defaults)


def pull(optimizer: ArrayOptimizer) -> list[Carrier]:
    """The carriers, with the values that the array's groups have now."""
    table = [
        {name: optimizer.rows(k, name) for name in [*optimizer.kinds, *optimizer.extras(k)]}
        for k in range(len(optimizer.param_groups))
    ]
    if not optimizer.carriers:
        for i in range(len(optimizer.array)):
            groups = [{name: rows[i] for name, rows in g.items()} for g in table]
            optimizer.carriers.append(Carrier(groups, dict.fromkeys(optimizer.kinds)))
        return optimizer.carriers
    for i, carrier in enumerate(optimizer.carriers):
        for k, rows in enumerate(table):
            if k == len(carrier.param_groups):
                carrier.add_param_group({"params": [nn.Parameter(torch.zeros(()))]})
            # What only some members have (a cycled momentum's bounds) is None for the others.
            own = {name: column[i] for name, column in rows.items()}
            carrier.param_groups[k].update({n: v for n, v in own.items() if v is not None or n in optimizer.kinds})
    return optimizer.carriers


def push(optimizer: ArrayOptimizer) -> None:
    """Write what has changed in the carriers' groups to the array's, as one value per member."""
    for k, group in enumerate(optimizer.param_groups):
        names = {n: None for c in optimizer.carriers for n in c.param_groups[k] if n != "params"}
        for name in names:
            column = [c.param_groups[k].get(name) for c in optimizer.carriers]
            if name not in group or optimizer.rows(k, name) != column:
                group[name] = column
