"""The live view's Python side: a front end can reconstruct the run from its messages."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from front_end import FrontEnd
from run_events import T0, epoch_done, folded, learning, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb.records.history import Curve, History
from hfta_nb.ui import live_view
from hfta_nb.ui.live_state import DEVICE, STEP_LOSS
from hfta_nb.ui.live_view import LiveView

AXES = {"lr": [1e-3, 1e-2], "width": [8, 16]}


def same(front: FrontEnd, history: History) -> None:
    """The front end holds the curves of the history: steps and times exactly, values as float32."""
    expected: dict[tuple[int, str], Curve] = {}
    for member in history.members.values():
        expected |= {(member.id, name): curve for name, curve in member.curves.items()}
        if member.step_loss.values:
            expected[(member.id, STEP_LOSS)] = member.step_loss
    got = {key: curve for key, curve in front.curves.items() if key[0] != DEVICE}
    assert got.keys() == expected.keys()
    for key, curve in expected.items():
        assert got[key].steps == curve.steps
        assert got[key].times == curve.times
        np.testing.assert_array_equal(got[key].values, np.asarray(curve.values, "f4").astype(float))
        np.testing.assert_array_equal(got[key].epochs, np.asarray(curve.epochs, "f4").astype(float))
    keys = {key for sample in history.samples for key in sample.values}
    for key in keys:
        curve = front.curves[(DEVICE, key)]
        assert curve.times == [s.time_s for s in history.samples if key in s.values]
        values = [s.values[key] for s in history.samples if key in s.values]
        np.testing.assert_array_equal(curve.values, np.asarray(values, "f4").astype(float))
    assert front.states == {m.id: (m.state, m.reason) for m in history.members.values()}


class Handle:
    """A run as a view sees it: a history, a lock, subscribers."""

    def __init__(self) -> None:
        self.history = History()
        self.lock = threading.RLock()
        self.callbacks: list[Callable[[ev.Event], None]] = []

    def subscribe(self, callback: Callable[[ev.Event], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def happens(self, *events: ev.Event) -> None:
        for event in events:
            with self.lock:
                self.history.add(event)
            for callback in list(self.callbacks):
                callback(event)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(live_view.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("heard", [True, False])
def test_deltas_add_up_to_the_history(heard: bool) -> None:
    view = LiveView()
    front = FrontEnd(view)
    if heard:
        front.hello()
    history = History()
    chance = random.Random(3)
    for event in whole_run(AXES):
        history.add(event)
        view.add(event)
        if chance.random() < 0.3:
            view.flush()
            same(front, history)
    view.flush()
    same(front, history)


def test_only_new_points_are_sent() -> None:
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    view.start(run_started(AXES))
    for epoch in range(1, 50):
        view.add(epoch_done(epoch, 4, learning))
    view.flush()
    sent = len(front.messages)
    view.flush()
    assert len(front.messages) == sent  # nothing new, nothing sent
    view.add(epoch_done(50, 4, learning))
    view.flush()
    header, buffers = front.messages[-1]
    assert not header["full"]
    assert "layout" not in header
    assert [count for _, _, count in header["curves"]] == [1] * 16
    assert [len(b) for b in buffers] == [16 * 4, 16 * 8, 16 * 8, 16 * 4]


def test_serials_have_no_gap() -> None:
    view = LiveView()
    front = FrontEnd(view)
    for event in whole_run(AXES):
        view.add(event)
        view.flush()
    front.hello()
    serials = [header["serial"] for header, _ in front.messages]
    assert serials == list(range(1, len(serials) + 1))


def test_late_front_end_gets_everything() -> None:
    view = LiveView()
    first = FrontEnd(view)
    first.hello()
    for event in whole_run(AXES):
        view.add(event)
        view.flush()
    late = FrontEnd(view)
    late.hello()
    header, _ = late.messages[-1]
    assert header["full"]
    assert header["layout"]["members"][0]["label"] == "#0 lr=0.001, width=8"
    same(late, folded(whole_run(AXES)))


def test_points_not_yet_flushed_reach_a_front_end_that_asks() -> None:
    view = LiveView()
    front = FrontEnd(view)
    for event in whole_run(AXES):
        view.add(event)
    front.hello()
    same(front, folded(whole_run(AXES)))


def test_who_asks_is_answered_before_a_run_too() -> None:
    front = FrontEnd(LiveView())
    front.hello()
    assert [content["kind"] for content, _ in front.messages] == ["nothing"]


def test_those_that_have_the_rest_get_the_new_points_before_another_page_is_answered() -> None:
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    view.start(run_started(AXES))
    view.add(epoch_done(1, 4, learning))
    front.hello()
    (points, _), (answer, _) = front.messages[-2:]
    assert (points["full"], points["answer"]) == (False, False)
    assert (answer["full"], answer["answer"]) == (True, True)


def test_until_a_front_end_answers_everything_is_sent_each_time() -> None:
    # A kernel that is busy with a cell never hears the request of a view that just opened.
    view = LiveView()
    FrontEnd(view)
    view.start(run_started(AXES))
    view.add(epoch_done(1, 4, learning))
    view.flush()
    opened_late = FrontEnd(view)
    view.add(epoch_done(2, 4, learning))
    view.flush()
    same(opened_late, folded([run_started(AXES), epoch_done(1, 4, learning), epoch_done(2, 4, learning)]))


def test_events_may_come_from_any_thread() -> None:
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    start = run_started({"seed": list(range(8))})
    view.start(start)
    done = threading.Event()

    def group(member: int) -> None:
        for epoch in range(1, 301):
            value = learning(epoch, member)
            view.add(ev.EpochDone(T0 + epoch, member, epoch, epoch, (member,), {"val_loss": (value,)}))
            if epoch % 50 == 0:
                view.flush()

    def flusher() -> None:
        while not done.is_set():
            view.flush()

    workers = [threading.Thread(target=group, args=(m,)) for m in range(8)]
    sender = threading.Thread(target=flusher)
    for thread in (*workers, sender):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    sender.join()
    view.flush()
    for member in range(8):
        expected = np.asarray([learning(e, member) for e in range(1, 301)], "f4").astype(float)
        np.testing.assert_array_equal(front.curves[(member, "val_loss")].values, expected)


def test_resumed_run_drops_what_lies_beyond_its_checkpoint() -> None:
    events = [run_started(AXES), *(epoch_done(e, 4, learning) for e in range(1, 8))]
    events += [run_started(AXES, resumed=True), *(epoch_done(e, 4, lambda *_: 9.0) for e in range(5, 7))]
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    for event in events:
        view.add(event)
        view.flush()
    same(front, folded(events))
    assert front.curves[(0, "val_loss")].values[-2:] == [9.0, 9.0]
    assert front.curves[(0, "val_loss")].epochs == [1, 2, 3, 4, 5, 6]


def test_new_run_starts_from_nothing() -> None:
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    for event in whole_run(AXES):
        view.add(event)
    view.flush()
    second = [run_started({"lr": [0.5]}, run_id="r2"), epoch_done(1, 1, learning)]
    for event in second:
        view.add(event)
    view.flush()
    same(front, folded(second))
    assert front.messages[-1][0]["pauses"] == []


def test_start_takes_a_finished_run() -> None:
    history = folded(whole_run(AXES))
    history.add(ev.RunChanged(T0 + 99, ev.COMPLETE))
    view = LiveView()
    front = FrontEnd(view)
    view.start(history)
    same(front, history)
    assert not view.running
    view.add(epoch_done(21, 4, learning))
    view.flush()
    assert len(history.members[0].curves["val_loss"].values) == 20  # a copy: the caller's is left alone


def test_attached_view_follows_the_run_and_no_faster_than_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    handle = Handle()
    events = list(whole_run(AXES, epochs=40))
    handle.happens(*events[:30])
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    view.attach(handle)
    same(front, handle.history)  # what happened before
    sent = len(front.messages)
    for event in events[30:]:
        clock.now += 0.01
        handle.happens(event)
    changes = sum(isinstance(e, ev.RunChanged) for e in events[30:])
    assert len(front.messages) - sent <= 0.01 * len(events[30:]) / 0.2 + changes
    handle.happens(ev.RunChanged(T0 + 200, ev.COMPLETE))  # at once, whatever the clock says
    same(front, handle.history)
    assert front.messages[-1][0]["run"]["state"] == ev.COMPLETE
    assert not view.running
    assert handle.callbacks == []


def test_overlap_of_replay_and_stream_counts_once() -> None:
    handle = Handle()
    events = list(whole_run(AXES))
    handle.happens(*events)
    view = LiveView()
    front = FrontEnd(view)
    view.attach(handle)
    for event in events[-60:]:  # delivered although the history had them: they came while the view subscribed
        view.add(event)
    view.flush()
    same(front, handle.history)
    assert [list(p) for p in front.messages[-1][0]["pauses"]] == [list(p) for p in handle.history.pauses]


def test_attach_to_another_run_leaves_the_first() -> None:
    first, second = Handle(), Handle()
    first.happens(*itertools.islice(whole_run(AXES), 20))
    second.happens(run_started({"lr": [0.5]}, run_id="r2"))
    view = LiveView()
    front = FrontEnd(view)
    view.attach(first)
    view.attach(second)
    assert first.callbacks == []
    second.happens(epoch_done(1, 1, learning))
    view.flush()
    same(front, second.history)
    view.close()
    assert second.callbacks == []


def test_attach_to_an_ended_run_does_not_stay() -> None:
    handle = Handle()
    handle.happens(run_started(AXES), ev.RunChanged(T0 + 1, ev.FAILED, "the worker died"))
    view = LiveView()
    front = FrontEnd(view)
    view.attach(handle)
    assert handle.callbacks == []
    assert front.messages[-1][0]["run"]["reason"] == "the worker died"


def test_observer_may_call_back_into_the_view() -> None:
    view = LiveView()
    seen: list[bool] = []

    def observer(change: Any) -> None:
        view.flush()
        seen.append(change["new"])

    view.observe(observer, "running")
    view.start(run_started(AXES))
    view.add(ev.RunChanged(T0 + 2, ev.COMPLETE))
    view.flush()
    assert seen == [True, False]


def test_representation_is_the_same_each_time() -> None:
    view = LiveView()
    assert repr(view) == repr(LiveView()) == "LiveView()"
    bundle = view._repr_mimebundle_()
    assert bundle is not None
    assert bundle[0]["text/plain"] == "LiveView()"


def test_unknown_message_is_ignored() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started(AXES))
    sent = len(front.messages)
    view._handle_custom_msg({"kind": "else"}, [])
    view._handle_custom_msg("hello", [])
    assert len(front.messages) == sent
