"""A pytest plugin for runs with a fault, which reports the first failing test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

VARIABLE = "HFTA_NB_FIRST_FAILURE"
"""Names the file that the test's id is written to."""


def pytest_runtest_logreport(report: Any) -> None:
    _note(report)


def pytest_collectreport(report: Any) -> None:
    _note(report)


def _note(report: Any) -> None:
    path = Path(os.environ[VARIABLE])
    if report.failed and not path.exists() and "PYTEST_XDIST_WORKER" not in os.environ:
        path.write_text(report.nodeid, encoding="utf-8")
