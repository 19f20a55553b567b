"""Prepares a saved run for a Workbench."""

from __future__ import annotations

import time
from typing import Any

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.grid import Grid
from hfta_nb.study import Study

INTERRUPTED = "the process that trained it ended before the run did (the kernel was restarted, or the machine)"


def as_interrupted(study: Study) -> Study:
    """The study; its run is marked as failed if its process is gone."""
    history = study.history  # FAILED if the run was in progress and nobody holds its lock
    if history.run is None or history.state in ev.FINAL_STATES or study.store.running:
        return study
    # Without file locks, the user who reattaches is responsible.
    history.add(ev.RunChanged(time.time(), ev.FAILED, INTERRUPTED))
    return study


def grid_of(study: Study) -> Grid:
    """All variants of a study, including added ones."""
    grid = study.grid
    for one in study.added:
        grid = grid.plus(one.variants)
    return grid


def arguments_of(study: Study) -> dict[str, Any]:
    """The arguments of a Workbench that defines this study."""
    fixed = dict(study.fixed)
    own = not hfta.data.known(study.data_name)
    return {
        "family": study.family,
        "data": study.data if own else study.data_name,
        "grid": grid_of(study),
        "epochs": study.epochs,
        "batch_size": fixed.pop("batch_size", None),
        "patience": study.patience,
        "seed": study.seed,
        "dtype": str(study.dtype).removeprefix("torch."),
        "precision": study.precision,
        **({"capacity": study.capacity} if study.capacity else {}),
        **({"checkpointing": study.checkpointing} if study.checkpointing != "auto" else {}),
        **({"compile": study.compile} if study.compile != "auto" else {}),
        **(
            {"deterministic": True}
            if study.deterministic
            else {"strategy": study.strategy}
            if study.strategy != "measured"
            else {}
        ),
        **({"verify": study.verify} if study.verify != "first" else {}),
        **({"share_stream": False} if not study.share_stream else {}),
        **({"devices": study.devices, "devices_batch_norm": study.devices_batch_norm} if study.devices > 1 else {}),
        **({"member_steps": study.member_steps} if study.member_steps else {}),
        **({"member_seconds": study.member_seconds} if study.member_seconds else {}),
        **({"keep_checkpoints": study.keep_checkpoints} if len(study.keep_checkpoints) > 1 else {}),
        **({"population": study.rounds.method} if study.rounds is not None else {}),
        "device": str(study.device),
        "monitor": study.options["monitor"],
        **({"serial": True} if study.serial else {}),
        "across": study.across,
        **({"validate_every": study.validate_every} if study.validate_every > 1 else {}),
        **({"steps_per_epoch": study.steps_per_epoch} if study.steps_per_epoch else {}),
        **({"name": study.name} if study.name != f"{study.family.name} on {study.data_name}" else {}),
        **fixed,
    }
