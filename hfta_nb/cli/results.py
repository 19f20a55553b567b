"""`hfta-nb results`: shows the leaderboard of a saved run, or of one in progress in another process."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hfta_nb import events as ev
from hfta_nb.cli import studies, terminal_tables
from hfta_nb.cli.displays import Display, Lines, LiveDisplay
from hfta_nb.cli.json_lines import JsonLines
from hfta_nb.cli.run import report, report_json
from hfta_nb.errors import StoreError
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from hfta_nb.records.store import Store

LOOK_INTERVAL_S = 0.5
"""A run that is followed is looked at this often."""


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from hfta_nb.records.store import Store

    studies.check_writable(given.csv, given.directory)
    store = Store(Path(given.directory).absolute())
    store.read_study()
    if given.follow:
        with contextlib.suppress(KeyboardInterrupt):
            return show(store, given, follows=True)
    return show(store, given)


def show(store: Store, given: argparse.Namespace, *, follows: bool = False) -> int:
    """Show the leaderboard of a run; returns the exit code.

    Args:
        store: of the run, of which the events alone are read: its family may be defined in a notebook.
        given: its ``json``, and ``csv``, a file to write the leaderboard to as well, if it has one.
        follows: first show how it goes on, until it ends.

    Raises:
        KeyboardInterrupt: while it is followed.
        StoreError: nothing has run there yet.
    """
    from hfta_nb.records.summaries import history_of

    out = terminal_tables.console()
    csv: str | None = getattr(given, "csv", None)
    if follows:
        seen = History()
        shown = JsonLines() if given.json else (LiveDisplay if out.is_terminal else Lines)(out, lambda: seen)
        follow(store, seen, shown)
    history = history_of(store)
    if history.run is None:
        raise StoreError("nothing has run here yet", where=str(store.directory))
    if given.json:
        return report_json(history, store.directory, csv, 0)
    return report(history, store.directory, out, csv)


def follow(store: Store, history: History, display: Display, wait: Callable[[float], None] = time.sleep) -> None:
    """Show what happens in a run, until nobody is at it any more. Nothing is written.

    Args:
        store, history: of the run; the history takes its events in.
        display: shows them.
        wait: lets some seconds go by; for tests.
    """
    offset = 0
    with display:
        while True:
            running = store.running  # looked at first: what came before it ended is read after that
            for event, number in store.events(offset):
                offset = number
                if history.run is not None or isinstance(event, ev.RunStarted):
                    history.add(event)
                    display.add(event)
            if running is False or (running is None and history.state in ev.FINAL_STATES):
                return
            wait(LOOK_INTERVAL_S)
