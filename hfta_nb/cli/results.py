"""`hfta-nb results`: the leaderboard of a run that was kept."""

from __future__ import annotations

import argparse

from hfta_nb.cli import studies, tables
from hfta_nb.cli.run import report
from hfta_nb.errors import StoreError


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    studies.check_writable(given.csv)
    study = studies.saved(given.directory)
    if study.history.run is None:
        raise StoreError("nothing has run here yet", where=given.directory)
    report(study, tables.console(), given.csv)
    return 0
