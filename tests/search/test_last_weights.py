"""Last weights of members that end while they are paused or wait, that diverge, or that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from search.test_merging import search
from steering.scripted import Script, made, run, states
from steering.twins import net
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.train import rebuild
from hfta_nb.train.step import PlainStep

LAST: dict[str, Any] = {"keep_checkpoints": ["best", "last"]}
ASKED = dict[int, Callable[[hfta.Control], Any]]


def last_loss(study: hfta.Study, variant: int) -> float:
    """The validation loss of a member with its last weights."""
    module, data = study.member(variant).module("last").double(), study.data
    with torch.no_grad():
        out = module(data.floats(data.x_validation, torch.float64).double())
    return float(nn.functional.cross_entropy(out, data.y_validation))


def same(study: hfta.Study, other: hfta.Study, variant: int) -> bool:
    """Whether a member has the same last weights in two studies."""
    mine, theirs = (one.member(variant).module("last").state_dict() for one in (study, other))
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("pause", [6, 7], ids=["in an epoch", "at its end"])
def test_a_member_that_was_paused_and_stopped_keeps_where_it_was_paused(tmp_path: Path, pause: int) -> None:
    waited, stopped = made(tmp_path / "waited", **LAST), made(tmp_path / "stopped", **LAST)
    run(waited, {pause: lambda c: c.pause(2), 10: lambda c: c.stop(2)})
    run(stopped, {pause: lambda c: c.stop(2)})
    assert states(waited) == states(stopped) == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.STOPPED}
    assert waited.member(2).checkpoints == ["best", "last"]
    assert same(waited, stopped, 2)


def test_one_that_is_resumed_and_trains_on_keeps_its_end(tmp_path: Path) -> None:
    study = made(tmp_path, **LAST)
    run(study, {6: lambda c: c.pause(2), 9: lambda c: c.resume(2)})
    assert last_loss(study, 2) == pytest.approx(study.history.members[2].curves["val_loss"].values[-1], abs=1e-12)


def test_a_member_that_is_stopped_while_its_array_waits_to_join_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members 0 and 2 step aside for member 1, and member 0 is stopped meanwhile."""
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    study = search(tmp_path, **LAST)
    control = hfta.Control()
    script = Script({3: lambda c: c.pause(1), 13: lambda c: c.resume(1)})
    for event in study.run(script):
        if isinstance(event, ev.MemberChanged) and event.reason.startswith("to join array") and event.variant == 0:
            script.stop(0)
    assert not control.poll()
    assert states(study) == {0: ev.STOPPED, 1: ev.COMPLETE, 2: ev.COMPLETE}
    curve = study.history.members[0].curves["val_loss"].values
    assert 0 < len(curve) < 6
    assert last_loss(study, 0) == pytest.approx(curve[-1], abs=1e-12)


def test_a_member_that_diverged_keeps_its_last_finite_validation(tmp_path: Path) -> None:
    study = made(tmp_path, 4, **LAST)
    run(study, {10: lambda c: c.set(1, lr=1e300, weight_decay=1e300)})
    assert states(study)[1] == ev.DIVERGED
    curve = [value for value in study.history.members[1].curves["val_loss"].values if value == value]
    assert len(curve) == 2
    assert last_loss(study, 1) == pytest.approx(curve[-1], abs=1e-12)


def test_a_member_that_failed_keeps_what_was_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code raises in the third epoch, after it has changed the buffers."""
    train = PlainStep.train

    def failing(step: PlainStep, x: Any, *args: Any, **named: Any) -> Any:
        if step.steps == 7 and step.updates[0].optimizer.param_groups[0]["lr"] == 1e-2:
            step.module.train()(x)
            raise ValueError("no luck")
        return train(step, x, *args, **named)

    monkeypatch.setattr(PlainStep, "train", failing)
    study = made(tmp_path, 4, serial=True, **LAST)
    list(study.run())
    assert states(study) == {0: ev.COMPLETE, 1: ev.FAILED, 2: ev.COMPLETE}
    curve = study.history.members[1].curves["val_loss"].values
    assert len(curve) == 2
    assert last_loss(study, 1) == pytest.approx(curve[-1], abs=1e-12)


def test_a_run_that_was_stopped_keeps_where_its_members_are(tmp_path: Path) -> None:
    whole, each = made(tmp_path / "whole", **LAST), made(tmp_path / "each", **LAST)
    run(whole, {6: lambda c: c.stop()})
    run(each, {6: lambda c: [c.stop(variant) for variant in range(3)]})
    assert all(same(whole, each, variant) for variant in range(3))
    again = hfta.Study.load(tmp_path / "whole", family=net)
    list(again.run(resume=True))
    for variant, member in again.history.members.items():
        assert last_loss(again, variant) == pytest.approx(member.curves["val_loss"].values[-1], abs=1e-12)


def test_a_member_that_never_began_has_none(tmp_path: Path) -> None:
    grid = [{"lr": 1e-3, "width": 6}, {"lr": 1e-3, "width": 8}, {"lr": 1e-2, "width": 8}]
    study = made(tmp_path, 2, grid, padding="never", **LAST)
    run(study, {3: lambda c: (c.stop(1), c.stop(2))})
    assert [study.member(variant).checkpoints for variant in range(3)] == [["best", "last"], [], []]


def test_a_run_that_goes_on_knows_the_last_weights_of_a_member_that_waits(tmp_path: Path) -> None:
    """It is stopped by another process than the one that paused it."""
    wanted = made(tmp_path / "wanted", **LAST)
    run(wanted, {6: lambda c: c.stop(2)})
    first = made(tmp_path / "run", **LAST)
    run(first, {6: lambda c: c.pause(2), 8: lambda c: c.stop()})
    again = hfta.Study.load(tmp_path / "run", family=net)
    run(again, {0: lambda c: c.stop(2)}, resume=True)
    assert states(again)[2] == ev.STOPPED
    assert same(again, wanted, 2)
