"""Members of a search that train longer than planned, of which some have joined their array later than others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from search.leaving import left
from steering.scripted import Script, equal
from steering.twins import data, net

import hfta_nb as hfta
from hfta_nb import events as ev

ASKED = dict[int, Callable[[hfta.Control], Any]]


def made(directory: Path, **given: Any) -> hfta.Study:
    """Member 0 is stopped in its first epoch by the scripts below, so that member 3 begins one epoch after 1 and 2."""
    how: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "lr_scheduler": "cosine"}
    how |= {"sampler": "random", "trials": 5, "slots": 3, "epochs": 3, "seed": 1, "strategy": "fixed"}
    space = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "data_seed": [0, 1]}
    return hfta.Study(net, space, data(), directory=directory, **(how | given))


def epochs(study: hfta.Study) -> list[int]:
    """Epochs that each member has trained."""
    return [member.epoch for member in study.history.members.values()]


def curves(study: hfta.Study) -> dict[int, Mapping[str, list[float]]]:
    return {m.id: {n: c.values for n, c in m.curves.items()} for m in study.history.members.values()}


SCRIPTS: dict[str, tuple[ASKED, list[int]]] = {
    # Where member 3 is asked about, it has done one epoch and the others two.
    "one that joined later": ({1: lambda c: c.stop(0), 11: lambda c: c.extend(2, variant=3)}, [0, 3, 3, 5, 3]),
    "one that was there": ({1: lambda c: c.stop(0), 11: lambda c: c.extend(2, variant=1)}, [0, 5, 3, 3, 3]),
    "two that end at once": ({1: lambda c: c.stop(0), 11: lambda c: c.extend(1, variant=1)}, [0, 4, 3, 3, 3]),
    # Members 1 and 2 have ended then; they join the others again.
    "all": ({1: lambda c: c.stop(0), 17: lambda c: c.extend(2)}, [0, 5, 5, 5, 5]),
    "one, then all": (
        {1: lambda c: c.stop(0), 11: lambda c: c.extend(1, variant=3), 17: lambda c: c.extend(1)},
        [0, 4, 4, 5, 4],
    ),
    "one that is paused": (
        {1: lambda c: c.stop(0), 10: lambda c: (c.pause(3), c.extend(1, variant=3)), 15: lambda c: c.resume(3)},
        [0, 3, 3, 4, 3],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_members_train_longer(tmp_path: Path, name: str) -> None:
    script, wanted = SCRIPTS[name]
    study = made(tmp_path)
    list(study.run(Script(script)))
    assert not study.history.refusals
    assert epochs(study) == wanted
    assert study.history.count(ev.COMPLETE) == 4
    assert equal(study)


@pytest.mark.parametrize("after", [6, 8])
@pytest.mark.parametrize("name", ["one that joined later", "two that end at once", "all"])
@pytest.mark.each("name")
def test_a_run_that_was_left_goes_on_for_as_long(tmp_path: Path, name: str, after: int) -> None:
    """A member's budget is that of before; all losses are those of the run that was not left, bit for bit."""
    script, wanted = SCRIPTS[name]
    whole = made(tmp_path / "whole")
    list(whole.run(Script(script)))
    control = Script(script)
    again = left(made(tmp_path / "run"), after, control, net)
    assert not control.script
    list(again.run(resume=True))
    assert epochs(again) == wanted
    assert equal(again)
    assert curves(again) == curves(whole)


@pytest.mark.parametrize("more", [5, 6])
def test_members_that_ended_at_once_train_on_from_where_each_was(tmp_path: Path, more: int) -> None:
    """Members 1 and 3 ended with the same epoch of their array, after four epochs of theirs and after three."""
    script, before = SCRIPTS["two that end at once"]
    study = made(tmp_path, lr_scheduler="step", step_size=2)
    list(study.run(Script(script)))
    assert epochs(study) == before
    again = hfta.Study.load(tmp_path, family=net)
    list(again.run(epochs=more))
    assert epochs(again) == [0, *[more] * 4]
    assert equal(again)


@pytest.mark.parametrize("name", ["one that joined later", "all"])
def test_a_run_that_was_killed_goes_on_for_as_long(tmp_path: Path, name: str) -> None:
    """Right after the request, and after the first checkpoint that comes later: the copies are what a kill leaves."""
    script, wanted = SCRIPTS[name]
    whole, copies = made(tmp_path / "run"), list[Path]()
    for event in whole.run(Script(script)):
        if isinstance(event, ev.CheckpointSaved) and any(e.how == "extended" for e in whole.history.edits):
            copies.append(tmp_path / f"copy {len(copies)}")
            shutil.copytree(whole.directory, copies[-1])
    assert len(copies) >= 2
    for copy in copies[:2]:
        again = hfta.Study.load(copy, family=net)
        list(again.run(resume=True))
        assert epochs(again) == wanted
        assert curves(again) == curves(whole)
