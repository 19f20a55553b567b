"""Runs whose arrays were halved: stopped, resumed, paused; members that fail or are padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb
from hfta_nb import Study
from hfta_nb import events as ev
from hfta_nb.records.events import Control
from hfta_nb.train.step import ArrayStep
from tests.core.hungry import Net, curves, data, forward, halved, made, same


def test_one_member_that_does_not_fit_fails_alone(
    tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ArrayStep.train

    def fail(self: ArrayStep, x: Any, y: Any, keep: Any = None) -> Any:
        if 3e-2 in self.updates[0].optimizer.rows(0, "lr"):
            raise torch.OutOfMemoryError("injected")
        return train(self, x, y, keep)

    monkeypatch.setattr(ArrayStep, "train", fail)
    study = made(tmp_path / "run")
    events = list(study.run())
    assert study.history.state == ev.COMPLETE
    states = {i: m.state for i, m in study.history.members.items()}
    assert states == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.COMPLETE, 3: ev.FAILED, 4: ev.COMPLETE}
    reason = study.history.members[3].reason
    assert "out of memory while training" in reason
    assert "smaller batch_size" in reason
    found = curves(study)
    assert same({i: found[i] for i in (0, 1, 2, 4)}, {i: undisturbed[i] for i in (0, 1, 2, 4)})
    assert any(isinstance(e, ev.ArrayHalved) and e.members == 2 for e in events)


def test_stop_and_resume_between_the_halves(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control = Control()
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 2 and len(event.variants) == 3:
            control.stop()
    assert study.history.state == ev.STOPPED
    assert {m.state for m in study.history.members.values()} == {ev.STOPPED}
    again = Study.load(tmp_path / "run", family=study.family)
    list(again.run(resume=True))
    assert again.history.state == ev.COMPLETE
    assert same(curves(again), undisturbed)
    assert [len(g.variants) for g in again.groups()] == [3, 2]


def test_pause_between_the_halves(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control, pauses = Control(), 0
    for event in study.run(control):
        if isinstance(event, ev.ArrayHalved):
            control.pause()
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            pauses += 1
            control.resume()
    assert pauses == 1
    assert same(curves(study), undisturbed)


def test_a_member_of_the_other_half_is_stopped(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control = Control()
    for event in study.run(control):
        if isinstance(event, ev.ArrayHalved):
            control.stop(4)
    states = {i: m.state for i, m in study.history.members.items()}
    assert states == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.COMPLETE, 3: ev.COMPLETE, 4: ev.STOPPED}
    assert study.history.members[4].reason == "stopped by request"
    assert same({3: curves(study)[3]}, {3: undisturbed[3]})


def test_members_of_different_width(tmp_path: Path, quiet: None) -> None:
    """Halves keep the padding of the whole, and members their numbers."""

    def run(place: str, fails: bool) -> Study:
        def net(width: int = 5, inputs: int = 6, outputs: int = 3) -> nn.Module:
            return Net(width, inputs, outputs)

        recipe = hfta_nb.family(name="hungry_net")(net)
        study = Study(
            recipe, {"width": [4, 5, 6]}, data(), directory=tmp_path / place, epochs=2, batch_size=16, dtype="float64",
            device="cpu", padding=0.9,
        )  # fmt: skip
        assert len(study.groups()) == 1
        assert study.groups()[0].architectures == 3
        if fails:
            forward.set(12)
        events = list(study.run())
        assert len(halved(events)) == int(fails)
        return study

    plain, disturbed = run("plain", False), run("run", True)
    assert same(curves(disturbed), curves(plain))
    for i in range(3):
        assert [p.shape for p in disturbed.member(i).module().parameters()] == [
            p.shape for p in plain.member(i).module().parameters()
        ]
