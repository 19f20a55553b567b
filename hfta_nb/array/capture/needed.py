"""Which of a recorded step's calls have to run again in each step."""

from __future__ import annotations

from collections.abc import Sequence

from hfta_nb.array.capture.kernels import SHAPE_ONLY
from hfta_nb.array.capture.record import Call, Recording

WRITES_UNSAID = ("batch_norm",)
"""In the names of kernels that write to arguments without their schema saying so."""


def needed(recording: Recording, wanted: set[int]) -> list[Call]:
    """Calls on which the results depend, that change what was there before, draw, or have no result."""
    found = set(wanted)
    kept = []
    for call in reversed(recording.calls):
        effects = call.draws or (not call.makes and not any(call.results))
        changes = call.writes & (recording.outside | found)
        unsaid = any(word in call.function._schema.name for word in WRITES_UNSAID)
        if effects or changes or unsaid or found & set(call.makes):
            found |= call.writes | (set() if call.function in SHAPE_ONLY else call.reads())
            kept.append(call)
    return kept[::-1]


def constant(calls: Sequence[Call]) -> set[int]:
    """Storages made from nothing, or from such, and never written to."""
    written = {s for c in calls for s in c.writes}
    found: set[int] = set()
    for call in calls:
        # Empty memory is for writing into.
        if call.makes and not call.draws and not call.writes and "empty" not in call.function._schema.name:
            reads = set() if call.function in SHAPE_ONLY else call.reads()
            if reads <= found and not set(call.makes) & written:
                found |= set(call.makes)
    return found
