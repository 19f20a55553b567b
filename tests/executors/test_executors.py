"""A run in a worker process, or in a thread: the same events, requests that arrive, ends that are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb import executors
from hfta_nb.errors import EventError, WorkerError
from hfta_nb.executors import RunHandle, pool
from tests.executors.fakes import Fake

DEADLINE_S = 60.0
kinds = pytest.mark.parametrize("kind", ["inline", "worker"])


@pytest.fixture(autouse=True, scope="module")
def _closed_afterwards() -> Iterator[None]:
    yield
    executors.close_all()


def until(condition: Callable[[], object], what: str) -> None:
    """Poll, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def collected(handle: RunHandle) -> list[ev.Event]:
    """Events from now on, Heartbeats left out."""
    found: list[ev.Event] = []
    handle.subscribe(lambda e: None if isinstance(e, ev.Heartbeat) else found.append(e))
    return found


def run(study: object, kind: str = "worker", **options) -> tuple[RunHandle, list[ev.Event]]:
    handle = executors.start(study, kind=kind, **options)
    events = collected(handle)
    handle.wait(DEADLINE_S)
    assert handle.ended
    return handle, events


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text() if Path(f"/proc/{pid}/status").exists() else False


@kinds
def test_events_arrive_in_order_and_whole(kind: str) -> None:
    handle = executors.start(Fake("count", 1000), kind=kind)
    assert handle.wait(DEADLINE_S) == ev.COMPLETE
    assert handle.error is None
    improved = [handle.history.members[i].best_epoch for i in (0, 1)]
    assert improved == [998, 999]


@kinds
def test_resume_reaches_the_study(kind: str) -> None:
    handle, _ = run(Fake(), kind, resume=True)
    assert handle.history.reason == "resumed"


@kinds
def test_requests_reach_the_run(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)
    handle.control.pause()
    until(lambda: handle.state == ev.PAUSED, "the pause")
    handle.control.resume()
    until(lambda: handle.state == ev.RUNNING, "the resumption")
    handle.control.stop(1)
    until(lambda: handle.history.members[1].state == ev.STOPPED, "the member's stop")
    assert handle.history.members[0].state != ev.STOPPED
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == ev.COMPLETE
    handle.control.stop()  # without effect, and without harm


@kinds
def test_a_failure_is_told_in_words(kind: str) -> None:
    handle, _ = run(Fake("fail"), kind)
    assert handle.state == ev.FAILED
    assert "ValueError: this went wrong" in str(handle.error)
    assert handle.history.reason == "ValueError: this went wrong"
    assert "in _fail" in handle.history.detail


@kinds
def test_a_callback_that_fails_does_not_end_the_run(kind: str) -> None:
    handle = executors.start(Fake("obey"), kind=kind)

    def broken(event: ev.Event) -> None:
        raise RuntimeError("a bug in a view")

    handle.subscribe(broken)
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == ev.COMPLETE


@kinds
def test_a_check_is_a_job(kind: str) -> None:
    handle = executors.start(Fake(), kind=kind, job="check", arguments={"members": []})
    assert handle.wait(DEADLINE_S) == ev.COMPLETE


def test_what_own_code_prints_does_not_disturb() -> None:
    handle, _ = run(Fake("chatter"))
    assert handle.state == ev.COMPLETE
    assert "to standard output" in handle.log or "xxx" in handle.log


def test_a_killed_worker_is_told_and_replaced() -> None:
    handle, _ = run(Fake("die"))
    assert handle.state == ev.FAILED
    assert "was killed by SIGKILL" in str(handle.error)
    assert "resume the run" in handle.history.reason
    assert "last words" in handle.history.detail
    assert run(Fake())[0].state == ev.COMPLETE


def test_a_worker_that_leaves_is_told() -> None:
    handle, _ = run(Fake("leave"))
    assert "exit code 7" in str(handle.error)


def test_a_warm_worker_is_reused_and_two_runs_have_two() -> None:
    first = executors.start(Fake("obey"))
    second = executors.start(Fake("obey"))
    assert first.pid != second.pid
    second.control.stop()
    assert second.wait(DEADLINE_S) == ev.COMPLETE
    assert not first.ended
    third, _ = run(Fake())
    assert third.pid == second.pid
    first.control.stop()
    assert first.wait(DEADLINE_S) == ev.COMPLETE
    executors.prewarm()
    assert len(pool._idle) <= pool.MAX_IDLE


def test_close_ends_a_run_that_listens_to_nobody() -> None:
    handle = executors.start(Fake("spin"))
    until(lambda: handle.history.phase, "the first event")
    handle.close()
    assert handle.wait(DEADLINE_S) == ev.FAILED
    assert "was closed" in str(handle.error)
    assert handle.pid is not None
    until(lambda: gone(handle.pid), "the process to be gone")


def test_an_interrupt_does_not_reach_the_run() -> None:
    handle = executors.start(Fake("obey"))
    until(lambda: handle.history.phase, "the first event")
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGINT)
    handle.control.stop(0)
    until(lambda: handle.history.members[0].state == ev.STOPPED, "an answer after the interrupt")
    handle.control.stop()
    assert handle.wait(DEADLINE_S) == ev.COMPLETE


def test_no_orphan_when_the_kernel_is_killed() -> None:
    """A process that started a worker is killed while the worker is busy: the worker ends."""
    code = (
        "import sys\n"
        "from hfta_nb import executors\n"
        "from tests.executors.fakes import Fake\n"
        "handle = executors.start(Fake('spin'))\n"
        "handle.subscribe(lambda e: print(getattr(e, 'detail', ''), flush=True))\n"
        "handle.wait()\n"
    )
    root = Path(__file__).resolve().parents[2]
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root, text=True)
    assert kernel.stdout is not None
    pid = next(int(line) for line in kernel.stdout if line.strip().isdecimal())
    assert not gone(pid)
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    until(lambda: gone(pid), "the worker to end")


def test_what_cannot_travel_is_named() -> None:
    study = Fake()
    study.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(WorkerError, match=r"can't be sent to a worker process .*lock"):
        executors.start(study)


def test_only_requests_are_posted() -> None:
    handle = executors.start(Fake("obey"), kind="inline")
    with pytest.raises(EventError, match="not a request"):
        handle.control.post("stop")  # type: ignore[arg-type]
    handle.control.stop()
    handle.wait(DEADLINE_S)


def test_threads_leave_a_core_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 16)
    assert executors.threads({}) == 7
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert executors.threads({}) == 1
    assert executors.threads({"HFTA_NB_THREADS": "5"}) == 5
    with pytest.raises(WorkerError, match="HFTA_NB_THREADS: not a number of threads"):
        executors.threads({"HFTA_NB_THREADS": "many"})


def test_a_real_study_with_an_own_family(tmp_path: Path) -> None:
    """The whole way: a family from this module's function, trained in a worker, read back through the store."""

    def build(width: int = 4, in_features: int = 1, out_features: int = 1) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, out_features))

    family = hfta.family(build, name="local")
    study = hfta.Study(family, {"lr": [1e-2, 1e-1]}, "digits", epochs=2, device="cpu", directory=tmp_path)
    handle, events = run(study)
    assert handle.error is None
    assert handle.state == ev.COMPLETE
    assert [type(e) for e in events if isinstance(e, ev.EpochDone)] == [ev.EpochDone] * 2
    assert len(study.results()) == 2
    assert study.best().module()(study.data.x_validation).shape == (360, 10)
    check = executors.start(study, job="check", arguments={"members": [0]})
    assert check.wait(DEADLINE_S) == ev.COMPLETE
    assert check.history.members[0].check is not None
    assert check.history.members[0].check.equal
