"""Finds which computation a process was trying when it ended."""

from __future__ import annotations

from collections.abc import Mapping

from hfta_nb.kernels.strategy import timing_cache, trials


def under_trial(pid: int, environment: Mapping[str, str]) -> str:
    """The computation that a process was trying when it ended, in words; empty if there was none.

    The next process with this environment does not try it.

    Args:
        pid: of the process.
        environment: its variables.
    """
    folder = timing_cache.folder(environment)
    return "" if folder is None else trials.under_trial(folder, pid)
