"""Chooses the number of torch's threads in a worker, and how they wait for each other.

Torch runs an operator on a pool of threads that meet at a barrier, where they spin by default. If all cores are in use,
another process (the kernel, the browser) takes the core of one thread, and the others waste a time slice waiting for
it: with two cores, two threads and another busy process, a training step slowed down from 6 ms to 1,300 ms; with one
thread nothing stalls. So one core is left to the kernel and the browser, two threads never share a core, and waiting
threads release their core.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from hfta_nb.errors import WorkerError

OVERRIDE = "HFTA_NB_THREADS"
"""Environment variable that overrides the number of threads."""

CAP = "OMP_NUM_THREADS"
"""Environment variable with which an administrator or a batch system limits the threads of a process."""

COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Libraries read these variables when torch is imported, so they must be set before."""

PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Settings against spinning at barriers, for any OpenMP, GNU's, Intel's and LLVM's. The user's own settings have
precedence."""

OF_A_CHILD = {*COUNTS, *PATIENCE, "CUDA_VISIBLE_DEVICES"}
"""What a worker has from its start, and does not take over from its parent later: libraries have read it."""

MOST_THREADS = 1024
"""No machine has more cores for one process. Creating far more threads would end the process silently."""

FEW = 4
"""So many processes may be started on any machine: to try what needs several."""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def threads(environment: Mapping[str, str] | None = None) -> int:
    """How many threads torch should use on this machine.

    One less than the cores this process may use (by affinity and by a container's quota), and not more than there are
    physical cores or than ``OMP_NUM_THREADS`` allows; at least one. ``HFTA_NB_THREADS`` overrides all of this.

    Args:
        environment: the environment with these two variables; by default this process's.

    Raises:
        WorkerError: ``HFTA_NB_THREADS`` is not a positive whole number.
    """
    given = os.environ if environment is None else environment
    text = given.get(OVERRIDE, "").strip()
    if text:
        if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_THREADS:
            raise WorkerError("not a number of threads", where=OVERRIDE, got=text, accepted=f"1 to {MOST_THREADS}")
        return int(text)
    limits = [_usable() - 1, _physical(), _allowed(given)]
    return max(1, min(limit for limit in limits if limit is not None))


def check_processes(where: str, count: int, gpus: int = 0) -> None:
    """See that so many processes may be started here: more than there are cores slow each other and the machine down.

    Args:
        where: the argument that asks for them.
        count: how many, from 1.
        gpus: that are to be used, for each of which there may be a process.

    Raises:
        WorkerError: there are fewer cores (by affinity and by a container's quota), and fewer GPUs.
    """
    cores = _usable()
    most = max(cores, gpus, FEW)
    if count > most:
        remedy = f'lower {where}; on a cluster that has more: executor="ray", address=...'
        raise WorkerError(f"more processes than this machine has cores ({cores})", where=where, got=count,
                          accepted=f"1 to {most}", remedy=remedy)  # fmt: skip


def environment() -> dict[str, str]:
    """The variables that a worker's environment needs before it imports torch."""
    count = str(threads())
    own = {name: os.environ.get(name, value) for name, value in PATIENCE.items()}
    return own | dict.fromkeys(COUNTS, count)


def _usable() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, quota))


def _physical() -> int | None:
    import psutil

    return psutil.cpu_count(logical=False)


def _allowed(environment: Mapping[str, str]) -> int | None:
    # May be a list, one number per level of nesting: "4,2".
    first = environment.get(CAP, "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _quota() -> int | None:
    """The CPU quota of a container in whole cores; None if there is no limit.

    More threads than that use up the quota early and are then halted for the rest of each period.
    """
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        if _QUOTA.exists():
            quota, period = _QUOTA.read_text().split()
        else:
            quota, period = (path.read_text().strip() for path in _QUOTA_V1)
        if quota not in ("max", "-1"):
            return math.ceil(int(quota) / int(period))
    return None
