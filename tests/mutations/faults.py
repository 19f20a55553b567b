"""The table of all faults."""

from __future__ import annotations

from tests.mutations import isolation, optimizers, rules, runs, screens
from tests.mutations.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *rules.FAULTS,
    *optimizers.FAULTS,
    *isolation.FAULTS,
    *runs.FAULTS,
    *screens.FAULTS,
)
