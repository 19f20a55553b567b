"""`hfta-nb families`: lists model families, their data and their axes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hfta_nb.cli import terminal_tables

if TYPE_CHECKING:
    from hfta_nb.search.grid import AxisSpec


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    import hfta_nb

    known = [hfta_nb.family(name) for name in hfta_nb.families()]
    augmentation: dict[str, dict[str, AxisSpec]] = {}
    for family in known:
        for kind, axes in family.augmentation.items():
            augmentation[kind] = {**augmentation.get(kind, {}), **axes}
    plain = next(f for f in known if not f.phases and not f.defaults)
    terminal_tables.families(known, plain.training, augmentation, terminal_tables.console())
    return 0
