"""`hfta-nb results`: shows the leaderboard of a saved run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hfta_nb import events as ev
from hfta_nb.cli import studies, tables
from hfta_nb.cli.run import report
from hfta_nb.errors import StoreError
from hfta_nb.history import History


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from hfta_nb.store import Store

    studies.check_writable(given.csv)
    # Reads the events only, so that runs of families defined in a notebook can be shown too.
    store, history = Store(Path(given.directory).absolute()), History()
    store.read_study()
    for event, _ in store.events():
        history.add(event)
    if history.state in (ev.RUNNING, ev.PAUSED) and store.running is False:
        history.add(ev.RunChanged(time.time(), ev.FAILED, "the process that trained it ended before the run did"))
    if history.run is None:
        raise StoreError("nothing has run here yet", where=given.directory)
    report(history, store.directory, tables.console(), given.csv)
    return 0
