"""Runs in the first layout can be opened and continued, and stay unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.records.store import Store, database
from tests.core.stores import in_layout1
from tests.frames import steady


def make(place: Path) -> hfta.Study:
    options = {"epochs": 3, "dtype": "float64", "deterministic": True, "device": "cpu"}
    return hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", directory=place, width=4, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    study = make(tmp_path_factory.mktemp("layout1") / "whole")
    for _ in study.run():
        pass
    return study


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An old run that was stopped in its second epoch."""
    place = tmp_path_factory.mktemp("layout1")
    for event in make(place / "new").run():
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            break
    return in_layout1(place / "new", place / "old")


def content(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def test_a_run_is_read_and_carried_on_and_its_files_stay(tmp_path: Path, stopped: Path, whole: hfta.Study) -> None:
    place = Path(shutil.copytree(stopped, tmp_path / "run"))
    before = content(place)
    study = hfta.Study.load(place)
    assert (study.history.state, study.history.members[0].epoch) == (ev.STOPPED, 2)
    study.best().module()
    for _ in study.run(resume=True):
        pass
    pd.testing.assert_frame_equal(steady(study.results()), steady(whole.results()), check_exact=True)
    after = content(place)
    assert {name: after[name] for name in before} == before


def test_a_run_that_was_complete_trains_on(tmp_path: Path, whole: hfta.Study) -> None:
    study = hfta.Study.load(in_layout1(whole.directory, tmp_path / "run"))
    for _ in study.run(epochs=4):
        pass
    assert set(study.results()["epochs"]) == {4}


def test_where_nothing_can_be_written_it_is_read_all_the_same(
    tmp_path: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(stopped, tmp_path / "run"))

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hfta_nb.records.store.database.tensor_files.sync", refused)
    study = hfta.Study.load(place)
    assert study.history.state == ev.STOPPED
    study.best().module()
    assert not (place / database.NAME).exists()
    with pytest.raises(StoreError, match="Permission denied"):
        next(iter(study.run(resume=True)))


def test_a_damaged_line_and_a_cut_one_are_left_out(tmp_path: Path, stopped: Path) -> None:
    place = Path(shutil.copytree(stopped, tmp_path / "run"))
    lines = (place / "events.jsonl").read_bytes().split(b"\n")
    lines[1] = lines[1][:20] + b"\xff" + lines[1][21:]
    (place / "events.jsonl").write_bytes(b"\n".join(lines)[:-5])
    with pytest.warns(StoreWarning, match=r"events.jsonl: 1 of \d+ events can't be read and are left out: line 2"):
        assert len(list(Store(place).events())) == len(lines) - 3


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("study.json", '{"format": 99}', "a run of another version; got 99"),
        ("study.json", "{", "study.json: can't be read"),
        ("study.json", "[]", "study.json: is not what was saved"),
        ("checkpoint.json", "{}", "a checkpoint of another version; got None"),
        ("checkpoint.json", '{"format": 1}', r"is not what was saved; got \['format'\]"),
        ("checkpoint.json", '{"format": 1, "tensors": "../x", "state": {}}', "names a file that is not beside it"),
        ("checkpoint-a.safetensors", None, "checkpoint-a.safetensors: no such file"),
        ("checkpoint-a.safetensors", "damaged", "no checkpoint is whole: .* is damaged"),
    ],
)
def test_what_is_damaged_is_told(tmp_path: Path, stopped: Path, name: str, content: str | None, words: str) -> None:
    place = Path(shutil.copytree(stopped, tmp_path / "run"))
    (place / name).unlink()
    if content is not None:
        (place / name).write_text(content)
    with pytest.raises(StoreError, match=words):
        list(hfta.Study.load(place).run(resume=True))


def test_a_state_that_does_not_fit_is_told(tmp_path: Path, stopped: Path) -> None:
    place = Path(shutil.copytree(stopped, tmp_path / "run"))
    told = json.loads((place / "checkpoint.json").read_text())
    del told["state"]["todo"][0]["run"]["scores"]
    (place / "checkpoint.json").write_text(json.dumps(told))
    with pytest.raises(StoreError, match=r"the checkpoint does not fit array 0 \(KeyError: 'scores'\)"):
        list(hfta.Study.load(place).run(resume=True))
