"""MLflow's tracking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb.records import events as ev
from hfta_nb.records.events import Json
from hfta_nb.study.callbacks.tracker import Tracker, imported

TAG = "hfta_nb.member"
STATUS = {ev.COMPLETE: "FINISHED", ev.PRUNED: "FINISHED", ev.STOPPED: "KILLED", ev.DELETED: "KILLED"}
STATUS[ev.INTERRUPTED] = "KILLED"
"""MLflow's names of states; all other states are failed."""


class MLflow(Tracker):
    """Records each member as an MLflow run of an experiment; a resumed study continues the same runs.

    Args:
        experiment: name of the experiment; created if it does not exist.
        tracking_uri: MLflow's tracking URI, for example ``file:mlruns``; by default MLflow's own. MLflow's global
            settings are not changed.

    Raises:
        StudyError: mlflow is not installed.
    """

    def __init__(self, experiment: str = "hfta_nb", tracking_uri: str | None = None) -> None:
        super().__init__()
        tool = imported("mlflow", "mlflow")
        self._entities = imported("mlflow.entities", "mlflow")
        self._client: Any = tool.MlflowClient(tracking_uri=tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._runs: dict[int, str] = {}

    def begin(self, variant: int, run: str, name: str, parameters: Mapping[str, Json]) -> None:
        key = f"{run}/{variant}"
        found = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{key}'", max_results=1)
        if found:
            self._runs[variant] = found[0].info.run_id
            self._client.set_terminated(self._runs[variant], "RUNNING")
            return
        made = self._client.create_run(self._experiment, run_name=name, tags={TAG: key})
        self._runs[variant] = made.info.run_id
        batch = [self._entities.Param(k, str(v)) for k, v in parameters.items()]
        self._client.log_batch(self._runs[variant], params=batch)

    def log(self, variant: int, epoch: int, time_s: float, values: Mapping[str, float]) -> None:
        batch = [self._entities.Metric(k, v, int(1000 * time_s), epoch) for k, v in values.items()]
        self._client.log_batch(self._runs[variant], metrics=batch)

    def end(self, variant: int, state: str) -> None:
        self._client.set_terminated(self._runs.pop(variant), STATUS.get(state, "FAILED"))
