"""Truncated, changed or swapped files of a run: a typed error or full recovery, never silent acceptance."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StoreWarning
from hfta_nb.records.store import Store
from tests.frames import steady

Saved = tuple[Path, Path, hfta.Study]


def make(place: Path) -> hfta.Study:
    x = torch.arange(48.0).reshape(24, 2) / 48
    data = hfta.data.from_tensors(x, (x.sum(1) > 0.9).long(), name="own")
    options = {"epochs": 3, "dropout": 0.2, "batch_size": 8, "width": 2, "depth": 1}
    return hfta.Study("mlp", {"lr": [1e-2, 1e-1]}, data, directory=place, device="cpu", deterministic=True, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A run with two checkpoints that was left; its directory as it was before; and the run in one go."""
    place = tmp_path_factory.mktemp("damage")
    whole = make(place / "whole")
    list(whole.run())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hfta_nb.train.schedule.Schedule.save_due", property(lambda self: self.ended is None))
        study, control = make(place / "late"), hfta.Control()
        for event in study.run(control):
            if isinstance(event, ev.EpochDone) and event.epoch == 1:
                control.pause()
            if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
                study.store.copy_to(place / "early")
                control.resume()
            if isinstance(event, ev.EpochDone) and event.epoch == 2:
                control.stop()
    return place / "late", place / "early", whole


def damage(place: Path, early: Path, chance: random.Random) -> str:
    """Damage one file; returns how."""
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
    path = chance.choice([*files, *[place / "study.sqlite"] * len(files)])  # most is in the database
    content = bytearray(path.read_bytes())
    kind = chance.choice(["cut", "flip", "flip", "flip", "swap", "lost", "zeros"])
    if kind == "cut":
        del content[chance.randrange(len(content)) :]
    elif kind == "flip":
        for _ in range(chance.choice([1, 1, 8])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "zeros":
        start = chance.randrange(len(content))
        content[start : start + 512] = bytes(len(content[start : start + 512]))
    elif kind == "swap":
        others = [early / "study.sqlite"] if path.suffix == ".sqlite" else [p for p in files if p.suffix == path.suffix]
        content = bytearray(chance.choice(others).read_bytes())
    path.unlink()
    if kind != "lost":
        path.write_bytes(content)
    return f"{kind} of {path.relative_to(place)}"


def outcome(place: Path, saved: Saved) -> str:
    """Load the run and carry it on."""
    late, early, whole = saved
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", StoreWarning)
        try:
            study = hfta.Study.load(place)
            before = [row.body for row in study.store.rows()]
            known = [[row.body for row in Store(one).rows()] for one in (late, early)]
            assert told or before in known, "other events than were written, without a word"
            for member in (0, 1):
                weights = study.store.read_weights(member)
                kept = [Store(one).read_weights(member) for one in (late, early)]
                assert any(all(torch.equal(weights[k], v) for k, v in one.items()) for one in kept)
            list(study.run(resume=True))
        except HftaError:
            return "typed"
    if not any("event" in str(one.message) for one in told):  # what an event said may be lost, and was told of
        pd.testing.assert_frame_equal(steady(study.results()), steady(whole.results()), check_exact=True)
    for member in (0, 1):
        weights = study.store.read_weights(member)
        assert all(torch.equal(weights[k], v) for k, v in whole.store.read_weights(member).items())
    return "told and recovered" if told else "recovered"


@pytest.mark.parametrize("share", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(6)])
def test_damaged_files_are_told_of_or_made_good(share: int, saved: Saved, tmp_path: Path) -> None:
    found = []
    for seed in range(28 * share, 28 * (share + 1)):
        place = tmp_path / f"{seed}"
        shutil.copytree(saved[0], place)
        how = damage(place, saved[1], random.Random(seed))
        try:
            found.append(outcome(place, saved))
        except BaseException as error:
            error.add_note(f"seed {seed}: {how}")
            raise
        shutil.rmtree(place)
    assert set(found) == {"typed", "told and recovered", "recovered"}
