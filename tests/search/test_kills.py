"""A search whose process is killed at any moment loses no trial, and tries none twice."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreWarning
from hfta_nb.records.store import Store
from tests.frames import steady
from tests.search.test_studies import study


class Snapshots:
    """Copies of a run's directory at each moment at which something was just written, or is about to be."""

    def __init__(self, run: Path, place: Path) -> None:
        self.run, self.place, self.taken = run, place, list[tuple[str, Path]]()

    def take(self, what: str) -> None:
        target = self.place / f"{len(self.taken)}"
        if (self.run / "study.sqlite").exists():
            shutil.copytree(self.run, target)
            self.taken.append((what, target))

    def around(self, method: Callable[..., Any], wanted: Callable[..., bool]) -> Callable[..., Any]:
        def wrapped(*given: Any, **more: Any) -> Any:
            if not wanted(*given):
                return method(*given, **more)
            self.take(f"before {method.__name__}")
            found = method(*given, **more)
            self.take(f"after {method.__name__}")
            return found

        return wrapped


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[hfta.Study, list[tuple[str, Path]]]:
    """A whole search, and what a kill would have left at each moment of it."""
    place = tmp_path_factory.mktemp("kills")
    made = study(place / "run", trials=4, slots=2, epochs=2, pruner="asha")
    snapshots = Snapshots(made.directory, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "note", snapshots.around(Store.note, lambda store, kind, bodies: kind == "trial"))
        patch.setattr(Store, "write_study", snapshots.around(Store.write_study, lambda store, *_: store.has_events))
        for event in made.run():
            if isinstance(event, ev.CheckpointSaved):
                snapshots.take("after a checkpoint")
    return made, snapshots.taken


def resumed(left: Path) -> hfta.Study:
    found = hfta.Study.load(left)
    list(found.run(resume=True))
    return found


def equal(found: hfta.Study, whole: hfta.Study) -> None:
    assert [t.params for t in found.optuna.trials] == [t.params for t in whole.optuna.trials]
    assert [t.state for t in found.optuna.trials] == [t.state for t in whole.optuna.trials]
    assert [t.values for t in found.optuna.trials] == [t.values for t in whole.optuna.trials]
    assert [t.intermediate_values for t in found.optuna.trials] == [t.intermediate_values for t in whole.optuna.trials]
    assert steady(found.results()).equals(steady(whole.results()))


@pytest.mark.parametrize("share", range(4))
def test_a_killed_search_goes_on(killed: tuple[hfta.Study, list[tuple[str, Path]]], share: int, tmp_path: Path) -> None:
    whole, taken = killed
    assert len(taken) >= 20
    _, left = taken[(2 * share + 1) * len(taken) // 8]
    equal(resumed(shutil.copytree(left, tmp_path / "left")), whole)


@pytest.mark.long
def test_a_search_that_is_killed_at_any_moment_goes_on(
    killed: tuple[hfta.Study, list[tuple[str, Path]]], tmp_path: Path
) -> None:
    whole, taken = killed
    for what, left in taken:
        found = resumed(shutil.copytree(left, tmp_path / left.name))
        assert found.history.state == ev.COMPLETE, what
        equal(found, whole)


def test_a_batch_that_was_not_asked_for_yet_is(killed: tuple[hfta.Study, list[tuple[str, Path]]]) -> None:
    """Fewer trials are left than there are slots: they are not forgotten."""
    whole, taken = killed
    early = [left for what, left in taken if len(Store(left).notes("trial")) == 3]  # two trials, and the search itself
    last = shutil.copytree(early[-1], early[-1].with_name("before the second batch"))
    found = hfta.Study.load(last)
    assert found.searcher is not None
    found.searcher.trials = 3
    list(found.run(resume=True))
    assert [t.params for t in found.optuna.trials] == [t.params for t in whole.optuna.trials[:3]]


def test_the_copy_for_the_dashboard_may_be_lost_or_damaged(
    killed: tuple[hfta.Study, list[tuple[str, Path]]], tmp_path: Path
) -> None:
    whole, taken = killed
    for damage in (b"", b"\x00\xff{garbage", None):
        left = tmp_path / f"left {damage!r:.6}".replace("\\", "")
        shutil.copytree(taken[len(taken) // 2][1], left)
        log = left / "optuna.log"
        log.unlink() if damage is None else log.write_bytes(damage)
        equal(resumed(left), whole)


def test_a_trial_that_is_damaged_is_told_of_and_the_others_are_there(
    killed: tuple[hfta.Study, list[tuple[str, Path]]], tmp_path: Path
) -> None:
    whole, taken = killed
    left = shutil.copytree(taken[-1][1], tmp_path / "damaged")
    with Store(left)._access.writing() as connection:
        connection.execute("UPDATE facts SET body = '{}' WHERE kind = 'trial' AND key = '000001'")
    with pytest.warns(StoreWarning, match="the trial 000001 is damaged and left out"):
        found = hfta.Study.load(left)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        trials = found.optuna.trials
    assert [t.number for t in trials if t.state.name == "FAIL"] == [1]
    assert [t.params for t in trials][2:] == [t.params for t in whole.optuna.trials][2:]
