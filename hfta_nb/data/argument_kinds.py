"""What the arguments of functions that make data may be."""

from __future__ import annotations

from hfta_nb.errors.border import FLAG, TEXT, WHOLE, Kind, number, one_of

SHARE = Kind("can't set this part aside", "between 0 and 1", lambda v: number(v) and 0 < v < 1)
TASKS = ("classification", "regression", "segmentation", "language_model", "masked_language_model", "click",
         "generation")  # fmt: skip
"""Kinds of targets; see `Data`."""

KINDS = {
    **{"name": TEXT.or_none, "task": one_of(*TASKS).or_none, "held_out": SHARE},
    **{"num_classes": WHOLE.or_none, "in_memory": FLAG.or_none},
}
"""By the name of the argument."""
