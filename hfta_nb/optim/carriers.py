"""Likenesses of an array's optimizer, one per member, for torch's own lr schedulers to work on.

A torch scheduler reads and writes the values of an optimizer's groups. Each member gets an optimizer that has groups
and values but nothing to train; what a scheduler writes there is written back to the array's groups as one value per
member.
"""

from __future__ import annotations

import torch
from torch import nn

from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.carrier import Carrier


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
