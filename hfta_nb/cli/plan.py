"""`hfta-nb plan`: shows which variants train together, and why others don't."""

from __future__ import annotations

import argparse
from typing import Any

from hfta_nb.cli import json_lines, studies, terminal_tables
from hfta_nb.cli import text as show


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    study = studies.new(given)
    out = terminal_tables.console()
    rows: list[Any] = study.plan().reset_index().to_dict("records")
    if given.json:
        variants = [{"id": v.id, "config": v.config, "seed": v.seed} for v in study.variants]
        known = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        json_lines.write("plan", {"study": study.name, "arrays": known, "variants": variants})
        return 0
    arrays = show.several(len(rows), "array")
    with terminal_tables.printing():
        out.print(f"{show.clean(study.name)}: {show.several(len(study.variants), 'variant')} in {arrays}")
        out.print()
    terminal_tables.plan(rows, {v.id: v.label for v in study.variants}, out)
    return 0
