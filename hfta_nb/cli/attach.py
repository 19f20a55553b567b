"""`hfta-nb attach`: shows how a run of another process goes on, such as that of a Workbench."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hfta_nb.cli import json_lines, results
from hfta_nb.cli.run import shown_path
from hfta_nb.errors import StoreError

if TYPE_CHECKING:
    from hfta_nb.records.store import Store


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    store = running(given.directory)
    try:
        return results.show(store, given, follows=True)
    except KeyboardInterrupt:
        text = f"the run goes on; to stop it: hfta-nb stop {shown_path(store.directory)}"
        json_lines.write("message", {"text": text}) if given.json else print(text)
        return 0


def running(directory: str) -> Store:
    """The store of a run that is in progress.

    Raises:
        StoreError: nobody runs it, or there is none.
    """
    from hfta_nb.records.store import Store

    store = Store(Path(directory).absolute())
    store.read_study()
    if store.running is False:
        place = shown_path(store.directory)
        remedy = f"hfta-nb results {place} shows it, hfta-nb run --resume {place} goes on with it"
        raise StoreError("nobody runs this study now", where=directory, remedy=remedy)
    return store
