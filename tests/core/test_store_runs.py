"""Runs of a study on disk: two at once, a full disk, names of code, exports."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors import SafetensorError

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FamilyError, StoreError, StudyError
from hfta_nb.records.store import Store, is_full, tensor_files
from hfta_nb.study import running
from hfta_nb.study.executors import jobs
from tests.frames import steady

ROOT = Path(__file__).resolve().parents[2]


def make(place: Path, family: Any = "mlp", **more: Any) -> hfta.Study:
    options = {"epochs": 3, "deterministic": True, "device": "cpu", **more}
    return hfta.Study(family, {"lr": [1e-3, 1e-2]}, "iris", directory=place, **options)


def run(study: hfta.Study, **options: Any) -> hfta.Study:
    list(study.run(**options))
    return study


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    return run(make(tmp_path_factory.mktemp("runs") / "whole"))


# Two at once.

BOTH = """
import sys
from pathlib import Path
import hfta_nb as hfta
from hfta_nb.errors import HftaError

study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", directory=sys.argv[1], epochs=2, device="cpu")
print("ready", flush=True)
sys.stdin.readline()
try:
    list(study.run())
    print("ran")
except HftaError as error:
    print(type(error).__name__)
"""


@pytest.mark.long
def test_of_two_processes_that_start_at_once_one_runs(tmp_path: Path) -> None:
    def process() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BOTH, str(tmp_path / "run")]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with process() as one, process() as two:
        for each in (one, two):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        said = [each.communicate()[0].strip() for each in (one, two)]
    assert sorted(said)[-1] == "ran"
    assert sorted(said)[0] in ("StudyError", "StoreError")
    begun = [event for event, _ in Store(tmp_path / "run").events() if isinstance(event, ev.RunStarted)]
    assert len(begun) == 1


def test_who_was_slower_finds_out_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has seen that nothing is there, and another one runs before it has the directory for itself."""
    one, two = make(tmp_path, epochs=1), make(tmp_path, width=4)
    claimed = Store.claimed

    def slowly(store: Store) -> Any:
        if store is two.store:
            run(one)
        return claimed(store)

    monkeypatch.setattr(Store, "claimed", slowly)
    with pytest.raises(StudyError, match="a run is already there, and complete"), running.opened(two):
        pass
    assert Store(tmp_path).read_study()["options"]["epochs"] == 1


def test_another_study_does_not_go_on_with_this_one(tmp_path: Path) -> None:
    run(make(tmp_path, epochs=1))
    other = hfta.Study("mlp", {"lr": [1e-3, 1e-1]}, "iris", directory=tmp_path, epochs=2, device="cpu")
    with pytest.raises(StudyError, match="another study is there, of another grid"):
        next(iter(other.run(epochs=2)))


def test_others_read_a_run_that_is_on(tmp_path: Path) -> None:
    study = make(tmp_path)
    seen = []
    for event in study.run():
        if isinstance(event, ev.EpochDone):
            other = hfta.Study.load(tmp_path)
            seen.append(len(other.results()["epochs"].unique()))
            assert other.history.state == ev.RUNNING
    assert seen == [1, 1, 1]


# A full disk.


@pytest.mark.parametrize("where", ["the first checkpoint", "an event"])
def test_a_run_stops_where_the_disk_is_full_and_goes_on_when_there_is_room(
    tmp_path: Path, where: str, whole: hfta.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    study = make(tmp_path)
    append = Store.append

    def appended(store: Store, event: ev.Event) -> int:
        if where == "an event" and isinstance(event, ev.EpochDone) and event.epoch == 2:
            raise tensor_files.full(store.path)
        return append(store, event)

    with monkeypatch.context() as patch:
        if where != "an event":
            patch.setattr(tensor_files, "save_file", no_room)
        patch.setattr(Store, "append", appended)
        with pytest.raises(StoreError, match="no room left on the disk") as caught:
            run(study)
    assert is_full(caught.value)
    assert jobs.failed(caught.value).state == ev.STOPPED  # as a worker tells it
    assert study.history.state == ev.STOPPED
    assert "carry on with run(resume=True)" in study.history.reason
    again = hfta.Study.load(tmp_path)
    assert again.history.state == ev.STOPPED
    pd.testing.assert_frame_equal(steady(run(again, resume=True).results()), steady(whole.results()), check_exact=True)


# What is known of it.


def test_environment_seeds_and_variants_are_noted(tmp_path: Path) -> None:
    study = make(tmp_path, seed=5)
    for event in study.run():
        if isinstance(event, ev.EpochDone):
            break
    study.add({"lr": 0.1, "seed": 7})
    run(study, resume=True)
    first, second = study.store.notes("environment").values()
    assert (first["hfta_nb"], first["data_seed"], first["family"]) == (hfta.__version__, 5, "mlp")
    assert first["torch"]
    assert len(first["family_code"]) == 64
    assert second["time_s"] > first["time_s"]
    variants = study.store.notes("variant")
    assert [v["origin"] for v in variants.values()] == ["grid", "grid", "added"]
    assert variants["000002"]["seed"] == 7


def test_nothing_is_imported_because_a_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, mark = tmp_path / "code", tmp_path / "imported"
    place.mkdir()
    source = f"from pathlib import Path\nfrom torch import nn\nPath({str(mark)!r}).touch()\n"
    source += "def net(in_features: int = 4, num_classes: int = 3) -> nn.Module:\n"
    (place / "code_of_somebody.py").write_text(source + "    return nn.Linear(in_features, num_classes)\n")
    registry = sys.modules["hfta_nb.models.model_zoo.registry"]
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.syspath_prepend(place)
    study = run(make(tmp_path / "run", epochs=1))
    study.store.write_study({**study.store.read_study(), "family": "code_of_somebody.net"})
    with pytest.raises(FamilyError, match=r"would be imported because a file names it.*trust=True"):
        hfta.Study.load(tmp_path / "run")
    assert not mark.exists()
    assert hfta.Study.load(tmp_path / "run", trust=True).family.name == "code_of_somebody.net"
    assert mark.exists()
    hfta.Study.load(tmp_path / "run")  # it is known by now
    sys.modules.pop("code_of_somebody", None)


# Exports.


def test_results_and_events_are_exported(tmp_path: Path, whole: hfta.Study) -> None:
    results = pd.read_csv(whole.export(tmp_path / "new" / "results.csv"))
    assert list(results["member"]) == list(whole.results().index)
    assert results["val_loss"].tolist() == pytest.approx(whole.results()["val_loss"].tolist(), rel=1e-12)
    events = pd.read_csv(whole.export(tmp_path / "events.csv", "events"))
    kept = [event for event, _ in whole.store.events()]
    assert list(events["type"]) == [type(event).__name__ for event in kept]
    assert events["time_s"].tolist() == [event.time_s for event in kept]  # type: ignore[attr-defined]


def test_what_can_not_be_exported_is_told(tmp_path: Path, whole: hfta.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match=r"unknown kind of file; .*accepted: .csv, .parquet"):
        whole.export(tmp_path / "results.xlsx")
    with pytest.raises(StudyError, match="accepted: results, events"):
        whole.export(tmp_path / "results.csv", "weights")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't be written"):
        whole.export(tmp_path / "file" / "results.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StudyError, match="pip install pyarrow"):
        whole.export(tmp_path / "results.parquet")


def test_parquet_has_the_same(tmp_path: Path, whole: hfta.Study) -> None:
    pytest.importorskip("pyarrow")
    for what in ("results", "events"):
        found = pd.read_parquet(whole.export(tmp_path / f"{what}.parquet", what))
        assert len(found) == len(pd.read_csv(whole.export(tmp_path / f"{what}.csv", what)))
