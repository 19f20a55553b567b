"""`Study.fit`: a complete run with a progress bar, callbacks and trackers."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.study.callbacks import MLflow, TensorBoard, Trackio, WandB

GRID = {"lr": [1e-3, 1e-2], "width": [4, 8]}


def make(place: Path, **more: Any) -> hfta.Study:
    options = {"epochs": 3, "padding": "never", "device": "cpu", **more}
    return hfta.Study("mlp", GRID, "iris", directory=place / "run", **options)


def test_fit_runs_to_the_end_and_shows_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make(tmp_path)
    table = study.fit()
    assert list(table["state"]) == [ev.COMPLETE] * 4
    shown = capsys.readouterr().out
    assert "complete, best val_accuracy" in shown
    assert "100%" in shown
    study.fit(epochs=4, progress=False)
    assert capsys.readouterr().out == ""
    assert set(study.results()["epochs"]) == {4}


def test_functions_get_each_event(tmp_path: Path) -> None:
    one: list[ev.Event] = []
    two: list[ev.Event] = []
    make(tmp_path).fit(on_event=[one.append, two.append], progress=False)
    assert one == two
    assert isinstance(one[0], ev.RunStarted)
    assert one[-1] == ev.RunChanged(one[-1].time_s, ev.COMPLETE)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_raised_leaves_a_study_that_goes_on(tmp_path: Path, error: type[BaseException]) -> None:
    told: list[ev.Event] = []

    def listen(event: ev.Event) -> None:
        told.append(event)
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            raise error

    study = make(tmp_path)
    with pytest.raises(error):
        study.fit(on_event=listen, progress=False)
    assert study.history.state == ev.STOPPED
    assert told[-1] == ev.RunChanged(told[-1].time_s, ev.STOPPED, "stopped by request")
    assert len(told) == len({id(e) for e in told})
    with pytest.raises(StudyError, match=r"resume it with run\(resume=True\)"):
        study.fit(progress=False)
    table = study.fit(resume=True, progress=False)
    assert set(table["epochs"]) == {3}


@pytest.mark.parametrize("given", [3, [3], TensorBoard])
def test_what_is_no_function_of_an_event(tmp_path: Path, given: Any) -> None:
    with pytest.raises(StudyError, match="on_event: can't be called with an event"):
        make(tmp_path).fit(on_event=given)


@pytest.mark.parametrize(
    ("made", "module"),
    [(TensorBoard, "torch.utils.tensorboard"), (MLflow, "mlflow"), (WandB, "wandb"), (Trackio, "trackio")],
)
def test_a_tracker_that_is_not_installed_says_so(made: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StudyError, match=f"{module}: is not installed .*pip install"):
        made()


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def stopped_and_resumed(study: hfta.Study, tracker: Any, other: Any) -> None:
    """A run that is left in its second array, and goes on with a tracker made anew."""

    def leave(event: ev.Event) -> None:
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (1, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.fit(on_event=[tracker, leave], progress=False)
    study.fit(resume=True, on_event=other, progress=False)


def curve(study: hfta.Study, member: int) -> list[float]:
    return study.history.members[member].curves["val_loss"].values


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_the_curves_and_the_configuration(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    study, place = make(tmp_path), tmp_path / "board"
    stopped_and_resumed(study, TensorBoard(place), TensorBoard(place))
    folders = sorted((place / "run").iterdir())
    assert [f.name for f in folders] == [
        f"{v.id} lr={v.config['lr']}, width={v.config['width']}" for v in study.variants
    ]
    for member, folder in enumerate(folders):
        found = EventAccumulator(str(folder))
        found.Reload()
        assert set(found.Tags()["scalars"]) == set(study.metrics)
        scalars = {s.step: s.value for s in found.Scalars("val_loss")}
        assert [scalars[e] for e in (1, 2, 3)] == pytest.approx(curve(study, member), rel=1e-6)
        content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        told = HParamsPluginData.FromString(content).session_start_info.hparams
        assert told["lr"].number_value == study.variants[member].config["lr"]


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_run_per_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    study, uri = make(tmp_path), (tmp_path / "mlruns").as_uri()
    stopped_and_resumed(study, MLflow("tests", uri), MLflow("tests", uri))
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert len(runs) == 4
    for run in runs:
        member = int(run.data.tags["hfta_nb.member"].rpartition("/")[2])
        config = study.variants[member].config
        assert {k: run.data.params[k] for k in config} == {k: str(v) for k, v in config.items()}
        assert run.info.status == "FINISHED"
        values = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "val_loss")}
        assert [values[e] for e in (1, 2, 3)] == curve(study, member)


@needs("wandb")
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_has_a_run_per_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    study = make(tmp_path)
    study.fit(on_event=WandB("tests", mode="offline", dir=str(tmp_path)), progress=False)
    assert len(list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))) == 4


@needs("trackio")
@pytest.mark.filterwarnings("ignore")
def test_trackio_has_a_run_per_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, which trackio reads from the environment when it is imported."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    study = make(tmp_path)
    stopped_and_resumed(study, Trackio("tests"), Trackio("tests"))
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    runs = {run.name: run for run in Api().runs("tests")}
    assert len(runs) == 4
    for member, v in enumerate(study.variants):
        name = f"run: {v.id} lr={v.config['lr']}, width={v.config['width']}"
        assert runs[name].config["lr"] == v.config["lr"]
        rows = SQLiteStorage.get_logs("tests", name)
        values = {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}
        assert [values[e] for e in (1, 2, 3)] == pytest.approx(curve(study, member))
        assert rows[-1]["state"] == ev.COMPLETE


class FakeRun:
    def __init__(self, **given: Any) -> None:
        self.given, self.logged, self.summary = given, [], {}
        self.code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


def test_wandb_is_told_of_each_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the package, which is large and may not be installed."""
    made: list[FakeRun] = []
    module = types.ModuleType("wandb")
    module.init = lambda **given: made.append(FakeRun(**given)) or made[-1]  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "wandb", module)
    study = make(tmp_path)
    study.fit(on_event=WandB("tests", mode="offline"), progress=False)
    assert [run.given["id"] for run in made] == [f"run-{i}" for i in (0, 2, 1, 3)]
    assert {run.given["mode"] for run in made} == {"offline"}
    for run in made:
        member = int(run.given["id"][-1])
        assert json.loads(json.dumps(run.given["config"])).items() >= study.variants[member].config.items()
        assert [values["val_loss"] for _, values in run.logged] == curve(study, member)
        assert (run.code, run.summary["state"]) == (0, ev.COMPLETE)
    assert math.isfinite(made[0].logged[-1][1]["train_loss"])
