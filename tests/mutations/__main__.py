"""Reports which deliberate faults the tests find.

Example:
    $ python -m tests.mutations --only rmsprop-eps
    rmsprop-eps: found by tests/contract/test_optimizers.py::... in 9 s
    1 of 1 faults found
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutations.faults import FAULTS
from tests.mutations.hunt import TIERS, Checkout, Outcome

MOST_SURVIVORS = 2
ROOT = Path(__file__).resolve().parent.parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where more than two faults survive."""
    given = _given(arguments)
    chosen = [f for f in FAULTS if given.only is None or f.name in given.only]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as place:
        checkout = Checkout(ROOT, Path(place), given.tests, given.n)
        for fault in chosen:
            outcome = checkout.hunt(fault)
            outcomes.append(outcome)
            print(told(outcome), flush=True)
            if given.json is not None:  # after each, so that a run that is cut off has told something
                given.json.write_text(json.dumps([_row(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")
    if checkout.unsound:
        print("left out, as they fail without a fault:", *checkout.unsound, sep="\n  ")
    survived = [o.fault.name for o in outcomes if not o.found_by]
    print(f"{len(outcomes) - len(survived)} of {len(outcomes)} faults found", *survived, sep="\n  survived: ")
    return int(len(survived) > MOST_SURVIVORS)


def told(outcome: Outcome) -> str:
    """What became of a fault, in a line."""
    fate = f"found by {outcome.found_by}" if outcome.found_by else f"survived ({outcome.fault.breaks})"
    return f"{outcome.fault.name}: {fate} in {outcome.seconds:.0f} s"


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutations", description="Which faults do the tests find?")
    names = [f.name for f in FAULTS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=f"of: {', '.join(names)}")
    parser.add_argument("--tests", choices=list(TIERS), default="default", help="which tests look for them")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="processes for all tests; 0 for one without xdist")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the outcomes are written, too")
    return parser.parse_args(arguments)


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.fault.name,
        "file": outcome.fault.file,
        "breaks": outcome.fault.breaks,
        "found_by": outcome.found_by or None,
        "seconds": round(outcome.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
