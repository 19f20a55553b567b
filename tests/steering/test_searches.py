"""Steering members of a search, some of which have joined their array later than others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from steering.twins import Twins, data, net

import hfta_nb as hfta
from hfta_nb import events as ev


def ask(control: hfta.Control, joined: list[int]) -> None:
    first, *rest = joined
    control.set(first, lr=3e-3)
    control.clone(first, lr=1e-3)
    if rest:
        control.pause(rest[0])
        control.resume(rest[0])


@pytest.mark.parametrize("lr_scheduler", ["cosine", pytest.param("step", marks=pytest.mark.long)])
def test_members_that_joined_later_are_steered_like_all_others(tmp_path: Path, lr_scheduler: str) -> None:
    given: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "lr_scheduler": lr_scheduler}
    given |= {"sampler": "random", "pruner": "asha", "trials": 8, "slots": 3, "seed": 1, "strategy": "fixed"}
    space = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "data_seed": [0, 1]}
    study = hfta.Study(net, space, data(), epochs=4, directory=tmp_path, **given)
    control, asked = hfta.Control(), False
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and not asked and event.epoch == 2 and min(event.variants) >= 3:
            asked = True
            ask(control, list(event.variants))
    assert asked
    edits = study.history.edits
    assert [(e.how, e.epoch, e.step) for e in edits] == [("set", 2, 6), ("cloned", 2, 6)]
    assert all(m.state in ev.FINAL_STATES for m in study.history.members.values())
    assert max(Twins(study).differences().values()) < 1e-9
