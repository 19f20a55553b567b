"""Passes through data of unknown length: whoever waits for the end of one is told that there may be none."""

from __future__ import annotations

import warnings

from hfta_nb.errors import DataWarning

LONG_PASS = 10_000
"""Batches after which a pass of unknown length that still goes on is told of."""


def warn_of_long_pass(where: str, remedy: str) -> str:
    """Warn that a pass may have no end.

    Args:
        where: which pass.
        remedy: what to do if so.

    Returns:
        What is said of it.
    """
    told = f"{where}: {LONG_PASS:,} batches, and more to come; if it has no end, {remedy}"
    warnings.warn(told, DataWarning, stacklevel=2)
    return told
