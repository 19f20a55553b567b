"""Trackio."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from functools import partial
from typing import Any

from hfta_nb.records.events import Json
from hfta_nb.study.callbacks.tracker import Tracker, imported


class Trackio(Tracker):
    """Records each member as a run of Trackio in a group; a resumed study continues the same runs.

    Args:
        project: name of the project.
        init: further arguments of ``trackio.init``, for example ``space_id=...``.

    Raises:
        StudyError: trackio is not installed.
    """

    def __init__(self, project: str = "hfta_nb", **init: Any) -> None:
        super().__init__()
        self._tool = imported("trackio", "trackio")
        self.project, self.init = project, init
        self._runs: dict[int, Any] = {}

    def begin(self, variant: int, run: str, name: str, parameters: Mapping[str, Json]) -> None:
        known = {"name": f"{run}: {name}", "group": run, "resume": "allow"}
        # One sampler of the machine per member would measure the same; the Workbench and the store have it.
        quiet = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        made = partial(self._tool.init, self.project, config=dict(parameters), **{**known, **quiet, **self.init})
        # In a context of its own: `init` finishes the run before it in the same one, and the members' are open at once.
        self._runs[variant] = contextvars.Context().run(made)

    def log(self, variant: int, epoch: int, time_s: float, values: Mapping[str, float]) -> None:
        self._runs[variant].log({**values, "epoch": epoch}, step=epoch)

    def end(self, variant: int, state: str) -> None:
        run = self._runs.pop(variant)
        run.log({"state": state})
        run.finish()
