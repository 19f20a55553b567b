"""What the first event of a run says of its study."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from hfta_nb import events as ev
from hfta_nb import telemetry

if TYPE_CHECKING:
    from hfta_nb.study.study import Study


def of(study: Study, resumed: bool) -> ev.RunStarted:
    """Everything that a view needs to lay itself out."""
    return ev.RunStarted(
        time.time(),
        run_id=study.directory.name,
        family=study.family.name,
        data=study.data.name,
        device=str(study.device),
        device_name=telemetry.device_name(str(study.device)),
        dtype=str(study.dtype).removeprefix("torch."),
        epochs=study.epochs,
        threads=torch.get_num_threads(),
        directory=str(study.directory),
        axes=dict(study.grid.axes),
        variants=tuple(ev.VariantRecord(v.id, v.config, v.seed) for v in study.variants),
        metrics=study.metrics,
        monitor=study.monitor,
        direction="maximize" if study.maximize else "minimize",
        resumed=resumed,
        precision=study.precision,
    )
