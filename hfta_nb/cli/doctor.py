"""`hfta-nb doctor`: says what this machine has, and what it costs where something is missing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from hfta_nb.cli import json_lines, terminal_tables
from hfta_nb.records.summaries import USUAL_FOLDER


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from hfta_nb.study import parts_of_machine

    parts = list(parts_of_machine(Path(USUAL_FOLDER)))
    if given.json:
        json_lines.write("doctor", {"parts": [asdict(part) for part in parts]})
    else:
        terminal_tables.parts(parts, terminal_tables.console())
    return 0
