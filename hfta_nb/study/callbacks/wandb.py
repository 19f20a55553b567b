"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb.records import events as ev
from hfta_nb.records.events import Json
from hfta_nb.study.callbacks.tracker import Tracker, imported


class WandB(Tracker):
    """Records each member as a run of Weights & Biases in a group; a resumed study continues the same runs.

    Args:
        project: name of the project.
        init: further arguments of ``wandb.init``, for example ``mode="offline"`` or ``dir=...``.

    Raises:
        StudyError: wandb is not installed.
    """

    def __init__(self, project: str = "hfta_nb", **init: Any) -> None:
        super().__init__()
        self._tool = imported("wandb", "wandb")
        self.project, self.init = project, init
        self._runs: dict[int, Any] = {}

    def begin(self, variant: int, run: str, name: str, parameters: Mapping[str, Json]) -> None:
        known = {"project": self.project, "group": run, "name": name, "id": f"{run}-{variant}", "resume": "allow"}
        # "create_new": the runs of all members are open at once.
        self._runs[variant] = self._tool.init(**{**known, "reinit": "create_new", **self.init}, config=dict(parameters))

    def log(self, variant: int, epoch: int, time_s: float, values: Mapping[str, float]) -> None:
        self._runs[variant].log({**values, "epoch": epoch}, step=epoch)

    def end(self, variant: int, state: str) -> None:
        run = self._runs.pop(variant)
        run.summary["state"] = state
        run.finish(exit_code=int(state in (ev.FAILED, ev.DIVERGED)))
