"""How many threads torch may use, chosen on purpose.

torch's default takes every core and its threads spin at a barrier. On a machine of two cores with one busy, a training
step went from 6 to 1,300 ms; with one thread there is no stall. So a core is left to the kernel and the browser.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil

from hfta_nb.errors import WorkerError

VARIABLE = "HFTA_NB_THREADS"


def threads(environment: Mapping[str, str] | None = None) -> int:
    """The number of threads that torch should have on this machine.

    Args:
        environment: where ``HFTA_NB_THREADS`` may set the number; by default the process's.

    Raises:
        WorkerError: the variable is not a whole number above 0.
    """
    asked = (os.environ if environment is None else environment).get(VARIABLE, "").strip()
    if asked:
        if not asked.isdecimal() or int(asked) < 1:
            raise WorkerError("not a number of threads", where=VARIABLE, got=asked, accepted="1, 2, 3, ...")
        return int(asked)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or usable
    return max(1, min(usable - 1, physical))


def environment(count: int) -> dict[str, str]:
    """Variables for a process that has not loaded torch yet: so many threads, which sleep while they wait."""
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))
    return {**numbers, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
