"""Stand-ins for the optimizers of single members, for torch's own lr schedulers to work on.

A torch scheduler reads and writes the values of an optimizer's groups. Each member gets an optimizer that has groups
and values but nothing to train; what a scheduler writes there is written back to the array's groups as one value per
member.
"""

from __future__ import annotations

import torch
from torch import nn

from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.optimizer_stub import OptimizerStub


def pull(optimizer: ArrayOptimizer) -> list[OptimizerStub]:
    """The stubs, with the values that the array's groups have now."""
    table = [
        {name: optimizer.rows(k, name) for name in [*optimizer.kinds, *optimizer.extras(k)]}
        for k in range(len(optimizer.param_groups))
    ]
    if not optimizer.stubs:
        for i in range(len(optimizer.array)):
            groups = [{name: rows[i] for name, rows in g.items()} for g in table]
            optimizer.stubs.append(OptimizerStub(groups, dict.fromkeys(optimizer.kinds)))
        return optimizer.stubs
    for i, stub in enumerate(optimizer.stubs):
        for k, rows in enumerate(table):
            if k == len(stub.param_groups):
                stub.add_param_group({"params": [nn.Parameter(torch.zeros(()))]})
            # What only some members have (a cycled momentum's bounds) is None for the others.
            own = {name: column[i] for name, column in rows.items()}
            stub.param_groups[k].update({n: v for n, v in own.items() if v is not None or n in optimizer.kinds})
    return optimizer.stubs


def push(optimizer: ArrayOptimizer) -> None:
    """Write what has changed in the stubs' groups to the array's, as one value per member."""
    for k, group in enumerate(optimizer.param_groups):
        names = {n: None for c in optimizer.stubs for n in c.param_groups[k] if n != "params"}
        for name in names:
            column = [c.param_groups[k].get(name) for c in optimizer.stubs]
            if name not in group or optimizer.rows(k, name) != column:
                group[name] = column
