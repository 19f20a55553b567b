"""From the arguments of a run to its executor."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from hfta_nb.errors import WorkerError
from hfta_nb.workers.executor_table import EXECUTORS, NAMES
from hfta_nb.workers.pools.executor import Executor
from hfta_nb.workers.processes.cores import check_processes


def executor_of(executor: Any, workers: int | None = None, address: str | None = None) -> Executor | None:
    """The executor of a run; None to train in this process.

    Args:
        executor: a name of `executor_table`, or an executor.
        workers: the most workers at a time.
        address: of a Ray cluster.

    Raises:
        WorkerError: the arguments don't go together, or Ray is not installed.
    """
    accepted = f"{', '.join(NAMES)}, or an executor such as Processes(workers=2)"
    given = {name: value for name, value in (("workers", workers), ("address", address)) if value is not None}
    if not isinstance(executor, str):
        if not all(hasattr(executor, name) for name in ("reach", "open", "terms")):
            raise WorkerError("not an executor", where="executor", got=executor, accepted=accepted)
        for name, value in given.items():
            raise WorkerError("the executor says so itself", where=name, got=value, remedy=f"leave {name} out")
        return cast("Executor", executor)
    if executor not in NAMES:
        raise WorkerError("unknown executor", where="executor", got=executor, accepted=accepted)
    named = EXECUTORS.get(executor)
    for name, value in given.items():
        takers = {other: one.text for other, one in EXECUTORS.items() if name in one.takes}
        if executor not in takers:
            remedy = f"executor={' or '.join(map(repr, takers))}, or leave it out"
            raise WorkerError(f"is for {' or '.join(takers.values())} alone", where=name, got=value, remedy=remedy)
    if named is None:
        return None
    made_by: Callable[..., Executor] = getattr(importlib.import_module(named.module), named.made_by)
    return made_by(**given)


def reached(
    executor: Any, workers: int | None = None, address: str | None = None, devices: int = 1, on_cpu: bool = True
) -> Executor | None:
    """The executor of a run that is about to begin; its first arguments as for `executor_of`.

    Args:
        devices: that train an array together.
        on_cpu: whether each is a process of a CPU.

    Raises:
        WorkerError: as `executor_of`, or there are no such workers to be had: nothing answers at the address, or this
            machine has not so many cores.
    """
    found = executor_of(executor, workers, address)
    if found is not None:
        found.reach(devices)
    elif on_cpu:
        check_processes("devices", devices)
    return found
