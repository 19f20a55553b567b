"""Records go to JSON and back; the mailbox; events folded into a history."""

from __future__ import annotations

import json
import math
import threading

import pytest
from run_events import folded, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb.errors import EventError, GridError, HftaError
from hfta_nb.records.events import Control, from_json, to_json
from hfta_nb.records.history import History
from tests.executors.fakes import started

RECORDS = [
    started(),
    ev.PlanMade(1.0, (ev.GroupRecord(0, (0, 1), "", 10, 2000, "fused"),)),
    ev.PhaseChanged(1.0, 0, "tuning", "why"),
    ev.SpeedMeasured(1.0, 0, 2, 20, 0.1, 0.2, 2.0, "all at once"),
    ev.MemoryMeasured(1.0, 0, 2, 3_000, 2_900, 10_000),
    ev.DifferenceFound(1.0, 0, "encoder", "member 3 comes to another loss than alone (1e-3 of 2)"),
    ev.ArrayHalved(1.0, 0, "training", 5, (3, 2), (0, 1), 9_000, 5_000, "out of memory"),
    ev.ArrayPlaced(1.0, 0, "process 7", (0, 1), 2),
    ev.ArrayPlaced(2.0, 0, "process 7", (), 2, True),
    ev.StepsDone(1.0, 0, 3, 9, 0.5, 1e4, 2.0, math.inf, (0, 1), (0.5, math.nan)),
    ev.SlotsFreed(1.0, 0, 3, 2),
    ev.SlotsFreed(1.0, 0, 3, 2),
    ev.EpochDone(1.0, 0, 1, 9, (0, 1), {"train_loss": (0.5, -math.inf), "val_loss": (1.0, 2.0)}),
    ev.MemberImproved(1.0, 0, 1, "val_loss", 0.25),
    ev.MemberChanged(1.0, 1, ev.DIVERGED, "not finite"),
    ev.MemberEdited(1.0, 4, "cloned", 3, True, 1, 9, {"lr": 1e-3}, "in the same array"),
    ev.MemberEdited(1.0, 4, "set", None, True, 1, 9, {"lr": 1e-3}),
    ev.RequestRefused(1.0, "Clone", 9, "no such variant"),
    ev.RequestRefused(1.0, "Extend", None, "nothing takes it in"),
    ev.RunChanged(1.0, ev.FAILED, "a <script>", "trace"),
    ev.DeviceSampled(1.0, "cpu", {"core0": 0.5}),
    ev.CheckpointSaved(1.0, 0, 1, "here"),
    ev.MemberChecked(1.0, 0, 3, {"val_loss": 1e-12}, 1e-8, False, False),
    ev.ForwardTried(1.0, 3, "RuntimeError: no", "model.py", 12, "forward", "x = self.fc(x)", "trace"),
    ev.RateMeasured(1.0, 0, 6, (1e4, 1.9e4), (3_000, 3_100)),
    ev.Heartbeat(1.0),
    ev.Add(({"lr": 0.1, "width": 8}, {"betas": (0.9, 0.99)}), "key"),
    ev.Clone(3, {"lr": 1e-3, "milestones": (2, 4)}, False, "key"),
    ev.Delete(3, "key"),
    ev.Extend(10, None, "key"),
    ev.Extend(10, 3, "key"),
    ev.Pause(),
    ev.Pause(3, "key"),
    ev.Pin(3, False),
    ev.Prune(3, "pruned after epoch 1"),
    ev.Resume(),
    ev.Set(3, {"max_norm": None}, "key"),
    ev.Stop(),
    ev.Stop(3),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_json_both_ways(record: ev.Event | ev.Request) -> None:
    text = json.dumps(to_json(record), allow_nan=False)
    assert repr(from_json(json.loads(text))) == repr(record)  # by repr, as NaN is not equal to itself


def test_every_record_is_covered() -> None:
    assert {type(r) for r in RECORDS} == set(ev.kinds())


def test_a_check_of_before_there_was_a_third_outcome() -> None:
    old = {"type": "MemberChecked", "time_s": 1.0, "variant": 0, "epochs": 3, "differences": {"val_loss": 0.0}}
    found = [from_json({**old, "tolerance": 1e-8, "equal": equal}) for equal in (True, False)]
    assert [event.verdict for event in found if isinstance(event, ev.MemberChecked)] == ["equal", "differs"]


def test_a_newer_field_is_left_out() -> None:
    assert from_json({"type": "Stop", "variant": 1, "politely": True}) == ev.Stop(1)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Nothing"},
        {"type": "MemberChanged", "time_s": 1.0},
        {"type": "MemberChanged", "time_s": 1.0, "variant": "0", "state": "RUNNING"},
        {"type": "EpochDone", "time_s": 1.0, "group": 0, "epoch": 1, "step": 1, "variants": 3, "metrics": {}},
        [],
    ],
)
def test_malformed_records_are_told(data: object) -> None:
    with pytest.raises(EventError):
        from_json(data)  # type: ignore[arg-type]


def test_mailbox_from_many_threads() -> None:
    control = Control()
    threads = [threading.Thread(target=lambda i=i: [control.stop(i * 100 + k) for k in range(100)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = control.poll()
    assert sorted(r.variant for r in found if isinstance(r, ev.Stop)) == list(range(400))
    assert control.poll() == control.wait(0.0) == []
    with pytest.raises(EventError, match="not a request"):
        control.post("stop")  # type: ignore[arg-type]


def _history(*events: ev.Event) -> History:
    history = History()
    for event in events:
        history.add(event)
    return history


def _epoch(epoch: int, losses: tuple[float, ...], time_s: float = 0.0) -> ev.EpochDone:
    return ev.EpochDone(time_s, 0, epoch, epoch * 10, (0, 1), {"train_loss": losses, "val_loss": losses})


def test_history_of_a_run() -> None:
    history = _history(
        *RECORDS[:2],
        _epoch(1, (3.0, 4.0)),
        ev.MemberImproved(0.0, 0, 1, "val_loss", 3.0),
        ev.MemberImproved(0.0, 1, 1, "val_loss", 4.0),
        _epoch(2, (5.0, 1.0)),
        ev.MemberImproved(0.0, 1, 2, "val_loss", 1.0),
        ev.RunChanged(7.0, ev.PAUSED),
        ev.RunChanged(9.0, ev.RUNNING),
        ev.RunChanged(11.0, ev.COMPLETE),
    )
    assert [m.id for m in history.leaderboard()] == [1, 0]
    assert history.members[0].at_best("train_loss") == 3.0
    assert history.members[1].at_best("train_loss") == 1.0
    assert math.isnan(history.members[1].at_best("nothing"))
    assert history.pauses == [(7.0, 9.0)]
    assert history.state == ev.COMPLETE
    row = history.rows()[0]
    assert (row["member"], row["best_epoch"], row["epochs"], row["lr"]) == (1, 2, 2, 1.0)


def test_members_fail_with_their_run_and_go_on_with_it() -> None:
    history = folded(list(whole_run({"lr": [1.0, 2.0, 3.0]}, epochs=10)))
    history.add(ev.RunChanged(9e9, ev.FAILED, "the worker died"))
    states = [(m.state, m.reason) for m in history.members.values()]
    assert states[0] == states[2] == (ev.FAILED, "the run failed")
    assert states[1][0] == ev.DIVERGED
    history.add(run_started({"lr": [1.0, 2.0, 3.0]}, resumed=True))
    assert [m.state for m in history.members.values()] == [ev.WAITING, ev.DIVERGED, ev.WAITING]


def test_a_resumed_run_replaces_what_came_after_its_checkpoint() -> None:
    first = started()
    again = ev.RunStarted(**{f: getattr(first, f) for f in first.__dataclass_fields__} | {"resumed": True})
    history = _history(first, _epoch(1, (3.0, 3.0)), _epoch(2, (2.0, 2.0)), again, _epoch(2, (2.5, 2.5)))
    assert history.members[0].curves["val_loss"].values == [3.0, 2.5]
    assert history.members[0].curves["val_loss"].steps == [10, 20]


def test_errors_say_all_and_travel() -> None:
    import pickle

    error = GridError("not a number", where="lr", got="1e", accepted="numbers", remedy="write 1e-3")
    assert str(error) == "lr: not a number; got '1e'; accepted: numbers; write 1e-3"
    back = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert isinstance(back, HftaError)
    assert isinstance(back, ValueError)
    assert (str(back), back.remedy) == (str(error), "write 1e-3")
    assert len(str(GridError("x", got="y" * 1000))) < 220
