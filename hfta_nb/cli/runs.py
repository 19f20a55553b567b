"""`hfta-nb runs`: lists the runs of a folder."""

from __future__ import annotations

import argparse

from hfta_nb.cli import terminal_tables
from hfta_nb.records.summaries import rows


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    out = terminal_tables.console()
    terminal_tables.runs(list(rows(given.folder)), out)
    return 0
