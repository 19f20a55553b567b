"""What a process that has ended was trying, for whoever started it."""

from __future__ import annotations

from collections.abc import Mapping

from hfta_nb.kernels.strategy import timing_cache, trials


def under_trial(pid: int, environment: Mapping[str, str]) -> str:
    """The way to compute that a process was trying when it ended, in words; empty where it was trying none.

    The next process with this environment does not try it.

    Args:
        pid: of the process.
        environment: its variables.
    """
    folder = timing_cache.folder(environment)
    return "" if folder is None else trials.under_trial(folder, pid)
