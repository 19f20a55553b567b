"""A run inline or in a worker: equal events, requests that arrive, reported ends."""

from __future__ import annotations

import threading

import pytest

from hfta_nb import events as ev
from hfta_nb.errors import EventError, WorkerError
from hfta_nb.study import executors
from tests.executors.fakes import Fake
from tests.executors.watching import collected, ended, run
from tests.polling import eventually

kinds = pytest.mark.parametrize("kind", ["inline", "worker"])


def test_a_worker_gives_the_events_of_an_inline_run_in_their_order() -> None:
    inline, inline_events = run(Fake("count", 200), "inline")
    worker, worker_events = run(Fake("count", 200), "worker")
    assert inline.pid is None
    assert worker.pid is not None
    # One value is NaN, which equals nothing: the representations are compared.
    assert list(map(repr, worker_events)) == list(map(repr, inline_events))
    assert len(worker_events) == 202
    assert worker_events[-1] == ev.RunChanged(1.0, ev.COMPLETE)
    assert (worker.state, worker.error) == (ev.COMPLETE, None)


@kinds
def test_the_history_has_all_events(kind: str) -> None:
    handle, _ = run(Fake("count", 1000), kind)
    assert [handle.history.members[i].best_epoch for i in (0, 1)] == [998, 999]


@kinds
def test_a_long_stream_arrives_whole(kind: str) -> None:
    seen = 0

    def count(event: ev.Event) -> None:
        nonlocal seen
        seen += 1

    handle = executors.start(Fake("count", 100_000, gated=True), kind=kind)
    handle.subscribe(count)
    handle.control.resume()
    assert ended(handle).state == ev.COMPLETE
    assert seen == 100_002
    assert handle.history.members[1].best_epoch == 99_999


@kinds
def test_requests_reach_the_run(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)
    handle.control.pause()
    eventually(lambda: handle.state == ev.PAUSED, "the pause")
    handle.control.resume()
    eventually(lambda: handle.state == ev.RUNNING, "the resumption")
    handle.control.stop(1)
    eventually(lambda: handle.history.members[1].state == ev.STOPPED, "the member's stop")
    assert handle.history.members[0].state != ev.STOPPED
    handle.control.stop()
    assert ended(handle).state == ev.COMPLETE
    handle.control.stop()  # without effect, and without harm


@kinds
def test_requests_before_the_beginning_are_kept(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)
    handle.control.stop(0)
    handle.control.stop()
    assert ended(handle).history.members[0].state == ev.STOPPED


@kinds
def test_only_requests_are_posted(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)
    with pytest.raises(EventError, match="not a request"):
        handle.control.post("stop")  # type: ignore[arg-type]
    handle.control.stop()
    ended(handle)


@kinds
def test_resume_reaches_the_study(kind: str) -> None:
    handle, _ = run(Fake(), kind, resume=True)
    assert handle.history.reason == "resumed"


@kinds
def test_a_failure_is_told_in_words_and_with_its_traceback(kind: str) -> None:
    handle, events = run(Fake("fail"), kind)
    last = events[-1]
    assert isinstance(last, ev.RunChanged)
    assert (last.state, last.reason) == (ev.FAILED, "ValueError: this went wrong")
    assert 'raise ValueError("this went wrong")' in last.detail
    assert handle.state == ev.FAILED
    assert isinstance(handle.error, WorkerError)
    assert "ValueError: this went wrong" in str(handle.error)


@kinds
def test_a_job_that_exits_has_failed(kind: str) -> None:
    handle, _ = run(Fake("exit"), kind)
    assert (handle.state, handle.history.reason) == (ev.FAILED, "SystemExit: enough")


@kinds
def test_a_subscriber_that_fails_costs_nobody_anything(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    handle = executors.start(Fake("count", gated=True), kind=kind)

    def broken(event: ev.Event) -> None:
        raise SystemExit("a bug in a view")

    handle.subscribe(broken)
    events = collected(handle)
    handle.control.resume()
    ended(handle)
    assert len(events) == 5
    assert "a bug in a view" in caplog.text


@kinds
def test_a_subscription_ends_when_asked_also_from_within(kind: str) -> None:
    handle = executors.start(Fake("count", 50, gated=True), kind=kind)
    seen = []

    def once(event: ev.Event) -> None:
        seen.append(event)
        unsubscribe()
        unsubscribe()

    unsubscribe = handle.subscribe(once)
    handle.control.resume()
    ended(handle)
    assert len(seen) == 1


@kinds
def test_who_looks_and_subscribes_under_the_lock_misses_nothing_and_sees_nothing_twice(kind: str) -> None:
    handle = executors.start(Fake("count", 5000), kind=kind)
    eventually(lambda: handle.history.members, "the first event")
    later: list[ev.Event] = []
    with handle.lock:
        done = max(m.best_epoch for m in handle.history.members.values())
        handle.subscribe(later.append)
    ended(handle)
    epochs = [e.epoch for e in later if isinstance(e, ev.MemberImproved)]
    assert epochs == list(range(done + 1 if done else epochs[0], 5000))


@kinds
def test_the_next_run_may_be_started_from_the_last_event(kind: str) -> None:
    handle = executors.start(Fake(gated=True), kind=kind)
    following = []

    def again(event: ev.Event) -> None:
        if isinstance(event, ev.RunChanged):
            assert handle.wait() == ev.COMPLETE  # does not wait for itself
            following.append(executors.start(Fake(), kind=kind))

    handle.subscribe(again)
    handle.control.resume()
    ended(handle)
    assert ended(following[0]).state == ev.COMPLETE
    assert following[0].pid == handle.pid


@kinds
def test_a_check_is_a_job(kind: str) -> None:
    handle = executors.start(Fake(), kind=kind, job="check", arguments={"members": [1]})
    assert ended(handle).state == ev.COMPLETE
    assert handle.history.members[1].check is not None


@kinds
def test_a_check_can_be_stopped(kind: str) -> None:
    handle = executors.start(Fake("endless"), kind=kind, job="check", arguments={"members": [0]})
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    handle.control.stop()
    assert ended(handle).state == ev.STOPPED


@kinds
def test_close_ends_a_run_that_listens_to_nobody(kind: str) -> None:
    # Inline there is no end but between two events.
    handle = executors.start(Fake("count", 10**9) if kind == "inline" else Fake("spin"), kind=kind)
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    handle.close(grace_s=0.01)
    assert ended(handle).state == ev.STOPPED
    assert handle.error is None
    handle.close()


@kinds
def test_close_lets_a_run_come_to_its_own_end(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    handle.close(grace_s=60)
    assert handle.state == ev.COMPLETE


def test_waiting_is_bounded_and_tells_the_state() -> None:
    handle = executors.start(Fake("obey"), kind="inline")
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    assert handle.wait(0.01) == ev.RUNNING
    assert not handle.ended
    handle.close()


def test_an_inline_run_is_on_another_thread() -> None:
    threads = set()
    handle = executors.start(Fake(gated=True), kind="inline")
    handle.subscribe(lambda e: threads.add(threading.get_ident()))
    handle.control.resume()
    ended(handle)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("wrong", [{"kind": "thread"}, {"job": "walk"}])
def test_what_is_unknown_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(WorkerError, match="accepted: "):
        executors.start(Fake(), **wrong)  # type: ignore[arg-type]
