"""A plugin of pytest that prints each failure when it happens: a run that is ended at its time would tell none."""

from __future__ import annotations

import os
import sys

import pytest

TOLD = 1500
"""Characters of the end of a failure's description."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once, in the process that collects the outcomes of all workers."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n#### {report.nodeid} [{report.when}]\n{report.longreprtext[-TOLD:]}", file=sys.stderr, flush=True)
