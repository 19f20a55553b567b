"""Members that end early or diverge, runs that are stopped, paused and resumed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.records.store import Store
from hfta_nb.train.step import ArrayStep
from tests.frames import steady


def _run(study: hfta.Study, **options: Any) -> list[ev.Event]:
    return list(study.run(**options))


def test_best_epoch_is_the_one_kept(tmp_path: Path) -> None:
    """A learning rate so high that later epochs are worse: the weights are those of the best one."""
    study = hfta.Study("mlp", {"lr": [0.3]}, epochs=6, monitor="val_loss", device="cpu", directory=tmp_path)
    _run(study)
    member = study.history.members[0]
    values = member.curves["val_loss"].values
    assert member.best_epoch == 1 + values.index(min(values)) < 6
    with torch.no_grad():
        out = study.best().module()(study.data.x_validation)
    assert F.cross_entropy(out, study.data.y_validation).item() == pytest.approx(min(values), rel=1e-5)


@pytest.mark.parametrize("block", [3, 1])
def test_a_member_that_diverges_costs_the_others_nothing(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; the block size, which is found by timing otherwise, is the same in both runs."""
    monkeypatch.setattr(ArrayStep, "tune_at_first", lambda step: setattr(step.array, "block_size", block))
    curves = {}
    for name, middle in {"calm": 1e-3, "wild": 1e38}.items():
        study = hfta.Study(
            "mlp", {"lr": [1e-2, middle, 3e-2]}, epochs=3, optimizer="sgd", device="cpu", directory=tmp_path / name
        )
        _run(study)
        curves[name] = study.history.members
    lost = curves["wild"][1]
    assert lost.state == ev.DIVERGED
    assert "not finite" in lost.reason
    for i in (0, 2):
        assert curves["wild"][i].curves["val_loss"].values == curves["calm"][i].curves["val_loss"].values
        assert curves["wild"][i].state == ev.COMPLETE


def test_patience_ends_a_member_and_not_the_rest(tmp_path: Path) -> None:
    study = hfta.Study(
        "mlp", {"lr": [0.0, 1e-2]}, epochs=6, patience=2, monitor="val_loss", device="cpu", directory=tmp_path
    )
    _run(study)
    still, moving = study.history.members.values()
    assert (still.epoch, still.best_epoch, still.state) == (3, 1, ev.COMPLETE)
    assert "no better val_loss for 2 epochs" in still.reason
    assert moving.epoch == 6
    assert study.check([0, 1])["equal"].all()


def test_patience_goes_on_where_a_run_is_resumed(tmp_path: Path) -> None:
    """A learning rate of 0 is best after the first epoch."""
    options: dict[str, Any] = {"epochs": 9, "patience": 3, "monitor": "val_loss", "device": "cpu"}
    control, study = hfta.Control(), hfta.Study("mlp", {"lr": [0.0]}, directory=tmp_path, **options)
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 3:
            control.stop()
    rest = hfta.Study.load(tmp_path)
    _run(rest, resume=True)
    assert (rest.history.members[0].epoch, rest.history.members[0].state) == (4, ev.COMPLETE)


def test_stop_of_one_and_of_all(tmp_path: Path) -> None:
    study = hfta.Study(
        "mlp", {"lr": [1e-3, 1e-2], "width": [8, 16]}, epochs=50, padding="never", device="cpu", directory=tmp_path
    )
    control = hfta.Control()
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 2 and event.group == 0:
            control.stop(0)
        if isinstance(event, ev.EpochDone) and event.epoch == 4:
            control.stop()
    members = study.history.members
    assert study.history.state == ev.STOPPED
    assert {m.state for m in members.values()} == {ev.STOPPED}
    assert members[0].epoch == 2
    assert members[2].epoch == 4
    assert members[1].epoch == 0
    study.best().module()  # what was learnt so far is kept


def test_a_member_of_an_array_that_waits_can_be_stopped(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"width": [8, 16]}, epochs=1, padding="never", device="cpu", directory=tmp_path)
    control = hfta.Control()
    control.stop(1)
    _run(study, control=control)
    first, second = study.history.members.values()
    assert (first.state, first.epoch) == (ev.COMPLETE, 1)
    assert (second.state, second.epoch, second.reason) == (ev.STOPPED, 0, "stopped before it started")


@pytest.mark.only(serial=False)
@pytest.mark.parametrize(("serial", "padding"), [(False, "never"), (True, "never"), (False, "auto")])
def test_a_run_stopped_anywhere_and_resumed_is_the_run_in_one_go(tmp_path: Path, serial: bool, padding: str) -> None:
    def study(name: str) -> hfta.Study:
        return hfta.Study(
            "mlp",
            {"lr": [1e-3, 1e-2], "width": [8, 16]},
            epochs=4,
            dtype="float64",
            dropout=0.2,
            lr_scheduler="cosine",
            device="cpu",
            serial=serial,
            padding=padding,
            directory=tmp_path / name,
        )

    whole = study("whole")
    _run(whole)
    parts = study("parts")
    control = hfta.Control()
    for event in parts.run(control):
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (int(padding == "never"), 2):
            control.stop()
    assert parts.history.state == ev.STOPPED
    rest = hfta.Study.load(parts.directory)
    events = _run(rest, resume=True)
    assert isinstance(events[0], ev.RunStarted)
    assert events[0].resumed
    assert rest.history.state == ev.COMPLETE
    if serial:  # the fused block size is found by timing, so bits may differ there
        pd.testing.assert_frame_equal(steady(rest.results()), steady(whole.results()), check_exact=True)
    else:
        pd.testing.assert_frame_equal(steady(rest.results()), steady(whole.results()), atol=1e-10, rtol=0)
    for i in range(4):
        ours, theirs = rest.store.read_weights(i), whole.store.read_weights(i)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, atol=1e-10, rtol=0)


def test_history_is_up_to_date_whoever_runs(tmp_path: Path) -> None:
    ours, theirs = (hfta.Study("mlp", {"lr": [1e-3]}, epochs=2, device="cpu", directory=tmp_path) for _ in range(2))
    assert ours.history.state == ev.WAITING
    seen = [ours.history.members[0].epoch for event in theirs.run() if isinstance(event, ev.EpochDone)]
    assert seen == [1, 2]
    assert ours.history.state == ev.COMPLETE
    assert ours.history.rows() == theirs.history.rows()
    assert len(ours.history.samples) == len(theirs.history.samples)


def test_pause_and_resume(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, epochs=3, device="cpu", directory=tmp_path)
    control = hfta.Control()
    seen: list[ev.Event] = []
    for event in study.run(control):
        seen.append(event)
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            control.pause()
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            assert study.store.has_checkpoint
            control.resume()
    states = [e.state for e in seen if isinstance(e, ev.RunChanged)]
    assert states == [ev.PAUSED, ev.RUNNING, ev.COMPLETE]
    assert study.history.members[0].epoch == 3


def test_leaving_the_loop_stops_and_keeps(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, epochs=50, device="cpu", directory=tmp_path)
    events = study.run()
    for event in events:
        if isinstance(event, ev.EpochDone):
            break
    assert hfta.Study.load(tmp_path).history.state == ev.RUNNING
    events.close()  # as when nobody holds it any more
    found = hfta.Study.load(tmp_path)
    assert found.history.members[0].epoch == 1
    assert found.history.state == ev.STOPPED
    found.best().module()


def test_a_run_that_goes_on_is_not_resumed_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "claimed", partialmethod(Store.claimed, patience_s=0))
    study = hfta.Study("mlp", {"lr": [1e-3]}, epochs=50, device="cpu", directory=tmp_path)
    control = hfta.Control()
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            control.pause()
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            with pytest.raises(StudyError, match="the run is going on, in a loop that is still open"):
                _run(hfta.Study.load(tmp_path), resume=True)
            with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="is in progress elsewhere"):
                pool.submit(_run, hfta.Study.load(tmp_path), resume=True).result()
            control.stop()
    again = hfta.Study.load(tmp_path)
    for event in again.run(resume=True):
        if isinstance(event, ev.EpochDone):
            break
    assert again.history.members[0].epoch == 2
