"""A run whose loop is left, and the study as it is loaded after that."""

from __future__ import annotations

from typing import Any

import hfta_nb as hfta
from hfta_nb import events as ev


def left(study: hfta.Study, after: int, control: hfta.Control | None = None, family: Any = None) -> hfta.Study:
    """Run a study up to an end of an epoch, counted over all arrays and cohorts, and load it.

    Args:
        after: ends of epochs that are seen.
        control: of the run.
        family: of a study whose family is not built in.
    """
    count = 0
    for event in study.run(control):
        count += isinstance(event, ev.EpochDone)
        if count == after:
            break
    return hfta.Study.load(study.directory, family=family)
