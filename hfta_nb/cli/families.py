"""`hfta-nb families`: what can be trained, on what, over which axes."""

from __future__ import annotations

import argparse

from hfta_nb.cli import tables


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    import hfta_nb

    known = [hfta_nb.family(name) for name in hfta_nb.families()]
    training = {name: spec for name, spec in known[0].specs.items() if name not in known[0].axes}
    tables.families(known, training, tables.console())
    return 0
