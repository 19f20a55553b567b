"""What a member predicts for the validation samples of each class."""

from __future__ import annotations

import torch

from hfta_nb.data import Data, take
from hfta_nb.engine.array.access import call_module
from hfta_nb.errors import StudyError
from hfta_nb.models.metrics import confusion
from hfta_nb.study import result_tables
from hfta_nb.study.result import Result
from hfta_nb.study.study_state import StudyState, variant_of

CHUNK = 256
"""Samples that go through at once."""


@torch.no_grad()
def counts(study: StudyState, member: int | None) -> tuple[str, list[list[float]]]:
    """The member's name, and the counts of targets by class and predicted class.

    Raises:
        StudyError: the data has no classes, or is read batch by batch; or there is no such member, or no best one yet.
        StoreError: its weights were not saved (yet).
    """
    data = study.data
    if not isinstance(data, Data) or "num_classes" not in data.facts:
        accepted = "classes, and samples that are in memory"
        raise StudyError("no confusion matrix of this data", where=data.name, got=data.task, accepted=accepted)
    result = result_tables.best(study) if member is None else Result(study, variant_of(study, member))
    module, total = result.module(), torch.zeros(())
    for rows in torch.split(data.held_out_of(result.row.get("fold")), CHUNK):
        x, y = take(data.x_validation, rows), take(data.y_validation, rows)
        total = total + confusion(call_module(module, result.inputs(x)), y)
    return result.variant.label, total.tolist()
