"""`hfta-nb stop`: stops a run of another process, such as that of a Workbench."""

from __future__ import annotations

import argparse
import time

from hfta_nb.cli import json_lines
from hfta_nb.cli.attach import running
from hfta_nb.cli.run import shown_path
from hfta_nb.records.events import Stop

LOOK_INTERVAL_S = 0.2


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    store = running(given.directory)
    store.requests.post(Stop())
    while store.running:
        time.sleep(LOOK_INTERVAL_S)
    place = shown_path(store.directory)
    if given.json:
        json_lines.write("stopped", {"directory": store.directory})
        return 0
    print(f"stopped, everything is kept in {place}; to resume: hfta-nb run --resume {place}")
    return 0
