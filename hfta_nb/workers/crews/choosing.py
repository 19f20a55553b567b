"""From the arguments of a run to its executor."""

from __future__ import annotations

from typing import Any, cast

from hfta_nb.errors import WorkerError
from hfta_nb.workers.crews.executor import Executor
from hfta_nb.workers.crews.on_ray import OnRay
from hfta_nb.workers.crews.processes import Processes
from hfta_nb.workers.processes.cores import check_processes

KINDS = ("inline", "processes", "ray")


def executor_of(executor: Any, workers: int | None = None, address: str | None = None) -> Executor | None:
    """The executor of a run; None to train in this process.

    Args:
        executor: "inline", "processes", "ray", or an executor.
        workers: the most workers at a time, for "processes" and "ray".
        address: of a Ray cluster, for "ray".

    Raises:
        WorkerError: the arguments don't go together, or Ray is not installed.
    """
    accepted = f"{', '.join(KINDS)}, or an executor such as Processes(workers=2)"
    if not isinstance(executor, str):
        if not all(hasattr(executor, name) for name in ("reach", "open", "terms")):
            raise WorkerError("not an executor", where="executor", got=executor, accepted=accepted)
        for name, value in (("workers", workers), ("address", address)):
            if value is not None:
                raise WorkerError("the executor says so itself", where=name, got=value, remedy=f"leave {name} out")
        return cast("Executor", executor)
    if executor not in KINDS:
        raise WorkerError("unknown executor", where="executor", got=executor, accepted=accepted)
    if address is not None and executor != "ray":
        raise WorkerError("is for Ray alone", where="address", got=address, remedy='executor="ray", or leave it out')
    if executor == "inline":
        if workers is not None:
            remedy = 'executor="processes" or "ray", or leave it out'
            raise WorkerError("there are none in this process", where="workers", got=workers, remedy=remedy)
        return None
    return Processes(workers) if executor == "processes" else OnRay(address, workers)


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
