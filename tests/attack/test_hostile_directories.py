"""Directories that someone has made to do harm: a typed error or a run, no code of theirs, no hang, nothing outside."""

from __future__ import annotations

import random
import shutil
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.errors import HftaError
from tests.attack.directories import made_hostile

MANY, EACH = 150, 30
LONGEST_S = 30
EVENTS = 40
"""So many events a run that goes on is looked at: how many epochs it has is theirs to say."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first epoch."""
    place = tmp_path_factory.mktemp("hostile") / "run"
    study, control = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=3, width=4, device="cpu", directory=place,
                                keep_checkpoints=["best", "last"]), hfta.Control()  # fmt: skip
    for event in study.run(control):
        if isinstance(event, ev.EpochDone):
            control.stop()
    return place


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def used(place: Path) -> None:
    """What a person does with a directory: look at it, take weights home, go on with it."""
    study = hfta.Study.load(place)
    study.results()
    for variant in study.variants:
        study.member(variant.id).module()
    for number, _ in enumerate(study.run(resume=True)):
        if number == EVENTS:
            break


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(0, MANY, EACH)]
)
def test_a_hostile_directory(first: int, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = []
    for seed in range(first, first + EACH):
        shutil.copytree(stopped, tmp_path / f"{seed}" / "run")
        place = tmp_path / f"{seed}" / "run"
        how = made_hostile(place, random.Random(seed))
        before = set(place.parent.iterdir())
        signal.alarm(LONGEST_S)
        for use in (used, lambda at: main(["results", str(at)])):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    use(place)
            except HftaError:  # a typed error is one of the two right outcomes, a run the other
                pass
            except BaseException as error:
                faults.append(f"seed {seed}: {how}: {type(error).__name__}: {str(error)[:200]}")
        signal.alarm(0)
        if set(place.parent.iterdir()) != before:
            faults.append(f"seed {seed}: {how}: files beside the directory")
    assert faults == []
