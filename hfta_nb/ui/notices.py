"""Settings that can be trained with, but do not do what they seem to."""

from __future__ import annotations

import math

import hfta_nb as hfta
from hfta_nb.study import Study
from hfta_nb.ui.text import count


def notices(study: Study, patience: int | None) -> list[str]:
    """What to know of them, in a sentence each.

    Args:
        study: what is planned.
        patience: as typed, where 0 and nothing both mean never.
    """
    found = []
    largest = max(int(row["batch_size"]) for group in study.plan_groups for row in group.rows)
    if isinstance(study.data, hfta.Data) and largest > len(study.data) and not study.steps_per_epoch:
        samples = count(len(study.data), "sample")
        found.append(f"batch size: {largest:,} is more than the {samples} of training, so an epoch is one step.")
    if study.validate_every > study.epochs:
        epochs = count(study.epochs, "epoch")
        found.append(f"validate every: {study.validate_every:,} is more than {epochs}, so the only validation is "
                     "after the last one.")  # fmt: skip
    validations = math.ceil(study.epochs / study.validate_every)
    if patience == 0:
        found.append("patience: 0 means never, as an empty field does. 1 stops a variant at the first validation "
                     "without improvement.")  # fmt: skip
    elif patience is not None and patience >= validations:
        found.append(f"patience: {patience:,} is not less than the {count(validations, 'validation')} of the run, so "
                     "no variant stops early.")  # fmt: skip
    return found
