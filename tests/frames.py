"""Tables of two runs, compared."""

from __future__ import annotations

import pandas as pd

MEASURED = ["time_s", "time_share", "memory_bytes", "memory_share"]
"""Columns of `Study.results` that two runs of the same study don't have in common."""


def steady(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results without what depends on the machine."""
    return table.drop(columns=MEASURED, errors="ignore")
