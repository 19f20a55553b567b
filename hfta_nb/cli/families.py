"""`hfta-nb families`: lists model families, their data and their axes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hfta_nb.cli import json_lines, terminal_tables

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
    if given.json:
        common = {"training": _axes(plain.training), "augmentation": {k: _axes(v) for k, v in augmentation.items()}}
        listed = [
            {
                **{"family": f.name, "help": f.help, "data": f.data, "axes": _axes(f.axes)},
                "own_training": _axes({n: s for n, s in f.training.items() if s != plain.training.get(n)}),
                "augmentation": list(f.augmentation),
            }
            for f in known
        ]
        json_lines.write("families", {"families": listed, **common})
        return 0
    terminal_tables.families(known, plain.training, augmentation, terminal_tables.console())
    return 0


def _axes(specs: Mapping[str, AxisSpec]) -> list[dict[str, Any]]:
    names = ("type", "default", "choices", "low", "above", "high", "help")
    return [{"axis": name, **{part: getattr(spec, part) for part in names}} for name, spec in specs.items()]
