"""Trains configurations of an estimator in one study, which is gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from hfta_nb.data import Data
from hfta_nb.errors import StudyError
from hfta_nb.records import events as ev
from hfta_nb.study.study import Study

NEEDS_VALIDATION = "plateau"
"""The lr_scheduler that follows a loss of validation."""


def trained(
    family: Any, configs: Sequence[Mapping[str, Any]], data: Data, epochs: int, options: Mapping[str, Any]
) -> list[nn.Module | StudyError]:
    """Train members to their last epoch.

    Args:
        family: as for `Study`.
        configs: of the members; with folds in the data, each trains on each of them.
        data: of which validation samples choose nothing.
        epochs: of all members.
        options: further arguments of `Study`.

    Returns:
        Per member, in the order of configurations and their folds: the plain module on the CPU, or why there is none.

    Raises:
        HftaError: a configuration or option can't be used.
        Exception: all members raised it.
    """
    for config in configs:
        if str(config.get("lr_scheduler")).lower() in (NEEDS_VALIDATION, "reducelronplateau"):
            raise StudyError("follows a loss of validation, and `fit` holds no samples out", where="lr_scheduler",
                             got=NEEDS_VALIDATION, accepted="any other")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hfta_nb-") as place:
        # One validation, after the last epoch: the weights of the best epoch are the last ones.
        study = Study(family, list(configs), data, epochs=epochs, validate_every=epochs, metrics={}, monitor="val_loss",
                      directory=Path(place) / "run", serial=len(configs) == 1, **options)  # fmt: skip
        for _ in study.run():
            pass
        return [_module(study, variant.id) for variant in study.variants]


def _module(study: Study, member: int) -> nn.Module | StudyError:
    found = study.history.members[member]
    if found.state == ev.COMPLETE:
        return study.member(member).module()
    return StudyError(f"is {found.state.lower()} ({found.reason})", where=study.variants[member].label,
                      remedy="a diverged member may need a lower lr")  # fmt: skip
