"""The copy of the trials in Optuna's format."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreWarning
from hfta_nb.search import Mirror, Searcher
from tests.search.fake import ended, epoch, searcher

SPACE = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": [8, 16]}


def begun() -> Searcher:
    search = searcher(SPACE, pruner="asha")
    for trial in search.ask(3):
        search.started(trial, [trial.number])
    return search


def further(search: Searcher) -> None:
    search.saw(epoch(1, {0: 0.1, 1: 0.2, 2: 0.3}))
    search.saw(ended(0))
    search.saw(ended(2, ev.PRUNED))


def seen(path: Path) -> list[optuna.trial.FrozenTrial]:
    """As another process reads it."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return optuna.load_study(study_name="study", storage=storage).trials


def equal(path: Path, search: Searcher) -> None:
    for copy, trial in zip(seen(path), search.optuna.trials, strict=True):
        assert (copy.params, copy.state, copy.values) == (trial.params, trial.state, trial.values)
        assert copy.intermediate_values == trial.intermediate_values
        assert copy.user_attrs == trial.user_attrs


def test_the_copy_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, mirror = begun(), Mirror(tmp_path / "optuna.log")
    mirror.begin(search.optuna)
    equal(mirror.path, search)
    further(search)
    monkeypatch.setattr("hfta_nb.search.mirror.INTERVAL_S", 0.0)
    mirror.follow(search.optuna, [0, 1, 2])
    equal(mirror.path, search)
    monkeypatch.setattr("hfta_nb.search.mirror.INTERVAL_S", 3600.0)
    [trial] = search.ask(1)
    mirror.follow(search.optuna, [trial.number])
    assert len(seen(mirror.path)) == 3
    mirror.write(search.optuna)
    equal(mirror.path, search)


def test_the_copy_is_not_synced_value_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, mirror, synced = begun(), Mirror(tmp_path / "optuna.log"), []
    monkeypatch.setattr("os.fsync", synced.append)
    monkeypatch.setattr("hfta_nb.search.mirror.INTERVAL_S", 0.0)
    mirror.begin(search.optuna)
    further(search)
    mirror.follow(search.optuna, [0, 1, 2])
    assert not synced
    equal(mirror.path, search)


def test_a_copy_that_lacks_something_is_brought_up_to_date(tmp_path: Path) -> None:
    search, path = begun(), tmp_path / "optuna.log"
    Mirror(path).begin(search.optuna)
    before = path.read_bytes()
    further(search)  # and killed before the copy was written to
    Mirror(path).begin(search.optuna)
    assert path.read_bytes().startswith(before)
    equal(path, search)


@pytest.mark.parametrize("damage", ["cut", "other", "ahead", "empty"])
def test_a_copy_that_is_none_is_made_anew(tmp_path: Path, damage: str) -> None:
    search, path = begun(), tmp_path / "optuna.log"
    other = begun() if damage == "ahead" else searcher(SPACE, seed=7)
    if damage in ("other", "ahead"):
        further(other) if damage == "ahead" else other.ask(2)
    Mirror(path).begin(other.optuna if damage in ("other", "ahead") else search.optuna)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40] + b"\x00garbage\n{}\n")
    if damage == "empty":
        path.write_bytes(b"")
    Mirror(path).begin(search.optuna)
    equal(path, search)


def test_the_lock_of_a_process_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    search, path = begun(), tmp_path / "optuna.log"
    Mirror(path).begin(search.optuna)
    (tmp_path / "optuna.log.lock").symlink_to(path)
    Mirror(path).begin(search.optuna)
    equal(path, search)


def test_a_copy_that_can_not_be_written_is_told_of_once(tmp_path: Path) -> None:
    search, mirror = begun(), Mirror(tmp_path / "missing" / "optuna.log")
    with pytest.warns(StoreWarning, match=r"optuna.log: can't be written .* the search itself is in the study's"):
        mirror.begin(search.optuna)
    further(search)
    mirror.follow(search.optuna, [0])  # no second warning, which would be an error here
