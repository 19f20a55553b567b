"""A run whose directory, database or lock goes away while it trains: told while the weights are in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.records.store import Store
from hfta_nb.workers.pools import Terms
from tests.executors.baton import Baton
from tests.frames import steady


def make(place: Path, lrs: tuple[float, ...] = (1e-2, 1e-1)) -> hfta.Study:
    options = {"epochs": 4, "width": 2, "depth": 1, "device": "cpu", "deterministic": True, "dropout": 0.1}
    return hfta.Study("mlp", {"lr": list(lrs)}, "iris", directory=place, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    study = make(tmp_path_factory.mktemp("gone") / "whole")
    list(study.run())
    return study


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in each epoch."""
    monkeypatch.setattr("hfta_nb.train.schedule.Schedule.save_due", property(lambda self: True))


def another(place: Path) -> None:
    """Another directory of this name."""
    shutil.rmtree(place)
    place.mkdir()


def replaced(place: Path) -> None:
    copy = place.with_name("copy")
    shutil.copytree(place, copy)
    shutil.rmtree(place)
    copy.rename(place)


WAYS: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved": lambda place: place.rename(place.with_name("moved")),
    "made again": another,
    "replaced by a copy": replaced,
    "no database": lambda place: (place / "study.sqlite").unlink(),
    "another database": lambda place: (
        shutil.copy(place / "study.sqlite", place / "spare"),
        os.replace(place / "spare", place / "study.sqlite"),
    ),
}


def run(study: hfta.Study, epoch: int, harm: Callable[[Path], object], group: int = 0, **how: Any) -> None:
    for event in study.run(**how):
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (group, epoch):
            harm(study.directory)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epoch", [2, 4])
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.StoreWarning")
def test_it_is_told_and_can_be_saved_elsewhere(way: str, epoch: int, tmp_path: Path, whole: hfta.Study) -> None:
    study = make(tmp_path / "run")
    with pytest.raises(StoreError, match=r"is gone, or another one is there.*study\.save"):
        run(study, epoch, WAYS[way])
    study.save(tmp_path / "elsewhere")
    saved = hfta.Study.load(tmp_path / "elsewhere")
    for member in (0, 1):
        kept = saved.member(member).module().state_dict()
        assert all(torch.isfinite(value).all() for value in kept.values())
    list(saved.run(resume=True))
    pd.testing.assert_frame_equal(steady(saved.results()), steady(whole.results()), check_exact=True)
    for member in (0, 1):
        mine, theirs = (one.store.read_weights(member) for one in (saved, whole))
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.filterwarnings("ignore::hfta_nb.errors.StoreWarning")
def test_at_the_only_checkpoint_all_is_there_still(tmp_path: Path, whole: hfta.Study) -> None:
    """The end of an array is written before it, for `run(epochs=...)`."""
    study = make(tmp_path / "run")
    with pytest.raises(StoreError, match="is gone"):
        run(study, 4, shutil.rmtree)
    assert not study.directory.exists()
    study.save(tmp_path / "elsewhere")
    saved = hfta.Study.load(tmp_path / "elsewhere")
    for one in (saved, whole):
        for _ in (
            one.run(resume=True, epochs=6) if one is whole or one.history.state != ev.COMPLETE else one.run(epochs=6)
        ):
            pass
    pd.testing.assert_frame_equal(steady(saved.results()), steady(whole.results()), check_exact=True)


@pytest.mark.usefixtures("often")
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.StoreWarning")
def test_what_other_processes_train_is_saved_too(tmp_path: Path) -> None:
    study = make(tmp_path / "run")
    with pytest.raises(StoreError, match="is gone"):
        run(study, 2, shutil.rmtree, executor=Baton(terms=Terms(checkpoint_every_s=0.0)))
    study.save(tmp_path / "elsewhere")
    saved = hfta.Study.load(tmp_path / "elsewhere")
    for member in (0, 1):
        saved.member(member).module()
    list(saved.run(resume=True))
    assert list(saved.results()["state"]) == ["COMPLETE", "COMPLETE"]


@pytest.mark.usefixtures("often")
def test_a_command_saves_it_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keep, place = Store.append, tmp_path / "run"

    def append(self: Store, event: ev.Event) -> int:
        found = keep(self, event)
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            place.rename(tmp_path / "moved")
        return found

    monkeypatch.setattr(Store, "append", append)
    grid = ["run", "--family", "mlp", "--grid", "lr=1e-3,1e-2", "--epochs", "3", "--quiet"]
    assert main([*grid, "--output", str(place)]) == 1
    told = capfd.readouterr().err
    assert "is gone" in told
    assert f"saved to {place}-1" in told
    monkeypatch.setattr(Store, "append", keep)
    assert main(["run", "--resume", f"{place}-1", "--quiet"]) == 0


@pytest.mark.usefixtures("often")
def test_what_was_saved_before_and_is_gone_is_told(tmp_path: Path) -> None:
    """Of an array that was done the weights are in no memory any more."""
    study = make(tmp_path / "run")
    study.add({"lr": 1e-1, "width": 30})  # an array of its own, which trains last
    with pytest.raises(StoreError, match=r"is gone.*; weights of arrays that had ended are in files alone"):
        run(study, 2, shutil.rmtree, group=1)
    with pytest.warns(StoreWarning, match="files are gone: "):
        study.save(tmp_path / "elsewhere")
    saved = hfta.Study.load(tmp_path / "elsewhere")
    saved.member(2).module()
    with pytest.raises(StoreError, match="no such file"):
        saved.member(0).module()


def test_files_that_are_gone_when_the_run_is_over_are_told(tmp_path: Path) -> None:
    study = make(tmp_path / "run")
    for event in study.run():
        if isinstance(event, ev.RunChanged) and event.state == ev.COMPLETE:
            shutil.rmtree(study.directory)
    with pytest.warns(StoreWarning, match=r"files are gone: .*weights/0\."):
        study.save(tmp_path / "elsewhere")
    assert len(hfta.Study.load(tmp_path / "elsewhere").results()) == 2


LATE = """
import sys
import hfta_nb as hfta
from hfta_nb.errors import StoreError
try:
    with hfta.Study.load(sys.argv[1]).store.claimed(0.2):
        print("claimed")
except StoreError as error:
    print(error)
"""


def test_without_its_lock_a_run_is_still_nobody_elses(tmp_path: Path) -> None:
    study = make(tmp_path / "run")
    for event in study.run():
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            (study.directory / "run.lock").unlink()
            told = subprocess.run(
                [sys.executable, "-c", LATE, study.directory], capture_output=True, text=True, check=True
            )
            assert "in progress elsewhere" in told.stdout
            assert (study.directory / "run.lock").exists()  # another file, with a lock of its own
            assert Store(study.directory).running is True
    assert study.history.state == ev.COMPLETE
    assert Store(study.directory).running is False


def test_where_directories_know_no_locks_the_file_is_what_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hfta_nb.records.store import locks

    lock = locks._lock
    monkeypatch.setattr(
        locks, "_lock", lambda handle: None if os.path.isdir(f"/proc/self/fd/{handle}") else lock(handle)
    )
    study = make(tmp_path / "run")
    with pytest.raises(StoreError, match=r"run\.lock: is gone"):
        run(study, 1, lambda place: (place / "run.lock").unlink())
