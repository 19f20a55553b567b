"""Stand-ins for the optimizers of single members, for torch's own lr schedulers to work on.

A torch scheduler reads and writes the values of an optimizer's groups. Each member gets an optimizer that has groups
and values but nothing to train; what a scheduler writes there is written back to the array's groups as one value per
member.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hfta_nb.optim.hyperparameters import plain
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.optimizer_stub import OptimizerStub, parameter


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
                stub.add_param_group({"params": [parameter()]})
            # What only some members have (a cycled momentum's bounds) is None for the others.
            own = {name: column[i] for name, column in rows.items()}
            stub.param_groups[k].update({n: v for n, v in own.items() if v is not None or n in optimizer.kinds})
    return optimizer.stubs


def push(optimizer: ArrayOptimizer) -> None:
    """Write what has changed in the stubs' groups to the array's, as one value per member."""
    for k, group in enumerate(optimizer.param_groups):
        names = {n: None for c in optimizer.stubs for n in c.param_groups[k] if n != "params"}
        for name in names:
            column = [plain(c.param_groups[k].get(name)) for c in optimizer.stubs]  # a float32 0.1 is not 0.1
            if name not in group or optimizer.rows(k, name) != column:
                group[name] = column


def take_seen(scheduler: LRScheduler, other: LRScheduler) -> None:
    """Let a scheduler know of its metric what another one has seen, as `ReduceLROnPlateau` notes it."""
    seen = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
    vars(scheduler).update(copy.deepcopy({name: v for name, v in vars(other).items() if name in seen}))


def functions_in(factory: Any) -> Iterator[Any]:
    """The functions of the user's that make a scheduler, or that it calls."""
    if not isinstance(factory, functools.partial):
        yield factory
        return
    for value in (*factory.args, *factory.keywords.values()):
        yield from (f for f in (value if isinstance(value, list | tuple) else (value,)) if callable(f))


def values_of(stub: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the groups of an optimizer hold beside their parameters, copied."""
    return [{k: copy.deepcopy(v) for k, v in group.items() if k != "params"} for group in stub.param_groups]


def restore(stub: torch.optim.Optimizer, values: Sequence[Mapping[str, Any]]) -> None:
    """Put back what `values_of` gave."""
    for group, old in zip(stub.param_groups, values, strict=False):
        for name in [k for k in group if k != "params" and k not in old]:
            del group[name]
        group.update(copy.deepcopy(dict(old)))
