"""The plan of a study, with what can only be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfta_nb.events import Control
from hfta_nb.train import Trainer

if TYPE_CHECKING:
    from hfta_nb.plan import Group
    from hfta_nb.study.study import Study


def fitted(study: Study) -> list[Group]:
    """The arrays of a study, each as large as the device and the study's capacity let it be."""
    if all(g.fitted for g in study.plan_groups):
        return study.plan_groups
    trainer = Trainer(study.settings(), study.plan_groups, Control())
    for group in list(trainer.arrays):
        if not group.fitted:
            for _ in trainer.fitted(group, measure=True):
                pass
    return trainer.arrays
