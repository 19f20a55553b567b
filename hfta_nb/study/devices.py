"""The other devices of a study's run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hfta_nb.study.protocol import Definition
from hfta_nb.train.step import Step
from hfta_nb.workers import crews
from hfta_nb.workers.crews import Executor
from hfta_nb.workers.distributed.leader import spread as spread_over


def reached(study: Definition, executor: Any, workers: int | None, address: str | None) -> Executor | None:
    """The executor of a run that is about to begin; None to train in this process.

    Raises:
        WorkerError: it can't be used, no worker is to be had, or this machine has not so many cores.
    """
    devices = 1 if study.serial else study.devices
    return crews.reached(executor, workers, address, devices, study.device.type == "cpu")


def spread(study: Definition, executor: Executor | None) -> AbstractContextManager[Callable[[Step], Step] | None]:
    """Within, the processes of the other devices are there, unless the workers of an executor have their own.

    Returns:
        What lets them all make the step of an array; None where it is made on one device.

    Raises:
        DistributedError: a process does not start.
    """
    if study.serial or executor is not None:
        return nullcontext()
    return spread_over(study.devices, study.device, study.devices_batch_norm)
