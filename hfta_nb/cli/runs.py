"""`hfta-nb runs`: lists the runs of a folder."""

from __future__ import annotations

import argparse

from hfta_nb.cli import json_lines, terminal_tables
from hfta_nb.records.summaries import rows


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    found = list(rows(given.folder))
    if given.json:
        json_lines.write("runs", {"folder": given.folder, "runs": found})
    else:
        terminal_tables.runs(found, terminal_tables.console())
    return 0
