"""A member whose own code raises is tried again alone and fails alone; other members are unaffected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.errors import MemberError, StudyError
from hfta_nb.models.metrics import Metric
from tests.call_log import CallLog
from tests.frames import steady


class Net(nn.Module):
    """Raises where a member has the width 13, from its `late`-th training batch on or in validation."""

    calls = CallLog()

    def __init__(self, width: int, where: str, late: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, width), nn.Linear(width, 3)
        self.width, self.where, self.late = width, where, late

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.inner(x).relu(), 0.2, self.training)
        if (
            self.width == 13
            and not x.is_meta
            and {"forward": True, "validation": False}.get(self.where) is self.training
        ) and Net.calls.note() >= self.late:
            raise ValueError("no luck with thirteen")
        return self.outer(hidden)


@pytest.fixture(autouse=True)
def family() -> Any:
    @hfta.family(name="unlucky")
    def unlucky(width: int = 8, where: str = "forward", late: int = 0) -> nn.Module:
        if where == "build" and width == 13 and torch.empty(0).device.type != "meta":
            raise ValueError("no luck with thirteen")
        return Net(width, where, late)

    Net.calls.clear()
    return unlucky


def make(place: Path, widths: list[int], **more: Any) -> hfta.Study:
    options = {"epochs": 3, "dtype": "float64", "device": "cpu", "padding": "never", **more}
    return hfta.Study("unlucky", {"lr": [1e-3, 1e-2], "width": widths}, "iris", directory=place, **options)


def same(one: hfta.Study, other: hfta.Study, members: list[int]) -> None:
    drop = ["rank", "where", "late", "reason"]
    tables = [steady(s.results()).drop(columns=drop, errors="ignore").loc[members] for s in (one, other)]
    pd.testing.assert_frame_equal(*tables, atol=1e-10, rtol=0)


@pytest.mark.each("where")
@pytest.mark.parametrize("where", ["forward", "validation", "build"])
@pytest.mark.parametrize("padding", ["never", 0.9])
def test_members_that_raise_fail_alone(tmp_path: Path, where: str, padding: Any) -> None:
    """Members 1 and 4 raise; with padding they share the array of the others."""
    calm = make(tmp_path / "calm", [8, 12, 9], padding=padding, where="never")
    list(calm.run())
    study = make(tmp_path / "study", [8, 13, 9], padding=padding, where=where)
    told = [e for e in study.run() if isinstance(e, ev.MemberChanged) and e.variant == 1]
    assert study.history.state == ev.COMPLETE
    assert {i: m.state for i, m in study.history.members.items()} == {
        **dict.fromkeys((0, 2, 3, 5), ev.COMPLETE), **dict.fromkeys((1, 4), ev.FAILED)}  # fmt: skip
    same(study, calm, [0, 2, 3, 5])
    assert told[-1].state == ev.FAILED
    assert "ValueError: no luck with thirteen" in told[-1].reason
    assert 'raise ValueError("no luck with thirteen")' in told[-1].detail
    assert study.history.members[1].detail == told[-1].detail
    waiting = [e for e in told if e.state == ev.WAITING]
    assert [e.reason.partition(":")[0] for e in waiting] == ([] if where == "build" else ["to be tried alone"])
    assert sorted(i for g in study.groups() for i in g.variants) == list(range(6))
    study.member(0).module()


def test_a_member_that_raises_late_and_not_alone_is_complete(tmp_path: Path) -> None:
    """It trains again from its start, as a plain module; the array goes on from where it was."""
    calm = make(tmp_path / "calm", [13, 13 + 1], where="never", padding=0.9)
    list(calm.run())
    study = make(tmp_path / "study", [13, 13 + 1], late=5, padding=0.9)
    forward = Net.forward

    def once(self: Net, x: Tensor) -> Tensor:
        if len(Net.calls) > 5:
            self.late = 10**6
        return forward(self, x)

    try:
        for event in study.run():
            if isinstance(event, ev.MemberChanged) and event.state == ev.WAITING:
                Net.forward = once  # type: ignore[method-assign]
    finally:
        Net.forward = forward  # type: ignore[method-assign]
    assert {m.state for m in study.history.members.values()} == {ev.COMPLETE}
    same(study, calm, [0, 1, 2, 3])


def test_a_run_that_lost_a_member_is_stopped_and_resumed(tmp_path: Path) -> None:
    calm = make(tmp_path / "calm", [8, 13], where="never")
    list(calm.run())
    study = make(tmp_path / "study", [8, 13], padding=0.9, late=2)
    for event in study.run():
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            break
    again = hfta.Study.load(tmp_path / "study")
    list(again.run(resume=True))
    assert [m.state for m in again.history.members.values()] == [ev.COMPLETE, ev.FAILED] * 2
    same(again, calm, [0, 2])
    list(again.run(epochs=4))
    assert [m.epoch for m in again.history.members.values()][::2] == [4, 4]


@pytest.mark.parametrize("serial", [False, True])
def test_where_no_member_succeeds_the_run_has_failed(tmp_path: Path, serial: bool) -> None:
    study = make(tmp_path, [13], serial=serial)
    with pytest.raises(ValueError if serial else MemberError, match="no luck with thirteen"):
        list(study.run())
    assert study.history.state == ev.FAILED
    assert "no luck with thirteen" in study.history.reason
    assert {m.state for m in study.history.members.values()} == {ev.FAILED}


def test_where_all_members_diverge_the_run_has_failed(tmp_path: Path) -> None:
    arguments = ["run", "--family", "mlp", "--data", "iris", "--grid", "lr=1e38,2e38", "--set", "optimizer=sgd"]
    assert main([*arguments, "--epochs", "2", "--output", str(tmp_path / "run"), "--plain"]) == 1
    study = hfta.Study.load(tmp_path / "run")
    assert (study.history.state, study.history.reason) == (ev.FAILED, "no member succeeded: 2 diverged")


def test_a_serial_study_goes_on_after_a_member_that_fails(tmp_path: Path) -> None:
    study = make(tmp_path, [13, 8], serial=True)
    list(study.run())
    assert [m.state for m in study.history.members.values()] == [ev.FAILED, ev.COMPLETE] * 2
    with pytest.raises(StudyError, match="has no epoch to compare yet"):
        study.check([0])


def test_a_metric_that_raises_for_one_member(tmp_path: Path) -> None:
    class Fussy:
        """An accumulator that does not like the predictions of one member."""

        def __init__(self) -> None:
            self.values: list[Tensor] = []

        def update(self, prediction: Tensor, target: Tensor) -> None:
            self.values.append(prediction.detach().mean())

        def compute(self) -> Tensor:
            if len(self.values) == 1 and self.values[0] > 50:  # validation is one batch
                raise ValueError("too large for me")
            return torch.stack(self.values).mean()

        def state(self) -> Any:
            return list(self.values)

        def load_state(self, state: Any) -> None:
            self.values = list(state)

    @hfta.family(name="scaled", metrics={"fussy": Metric(lambda output, target: output, accumulator=lambda _: Fussy())})
    def scaled(shift: float = 0.0) -> nn.Module:
        module = nn.Linear(4, 3)
        if not module.bias.is_meta:
            nn.init.constant_(module.bias, shift)
        return module

    study = hfta.Study(
        "scaled", {"shift": [0.0, 100.0, 0.1]}, "iris", epochs=2, monitor="val_loss", device="cpu", directory=tmp_path
    )
    list(study.run())
    assert [m.state for m in study.history.members.values()] == [ev.COMPLETE, ev.FAILED, ev.COMPLETE]
    assert "too large for me" in study.history.members[1].reason
