"""Ends of a worker: how they are reported, and what follows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.study import executors
from hfta_nb.study.executors import pool
from hfta_nb.workers.processes import child_process, ends
from hfta_nb.workers.processes.ends import in_words
from tests.executors.fakes import Fake
from tests.executors.watching import DEADLINE_S, collected, ended, run
from tests.polling import descendants, eventually, gone

ROOT = Path(__file__).resolve().parents[2]


def test_a_failed_job_leaves_the_worker_usable() -> None:
    failed, _ = run(Fake("fail"))
    after, _ = run(Fake())
    assert after.state == ev.COMPLETE
    assert after.pid == failed.pid


def test_an_event_that_is_not_json_is_the_jobs_failure() -> None:
    handle, _ = run(Fake("numpy"))
    assert handle.state == ev.FAILED
    assert "float32" in handle.history.reason


def test_a_killed_worker_is_told_and_replaced() -> None:
    handle, events = run(Fake("die"))
    last = events[-1]
    assert isinstance(last, ev.RunChanged)
    assert last.state == handle.state == ev.INTERRUPTED
    assert f"process {handle.pid}: the worker process was killed (SIGKILL)" in last.reason
    assert "nothing was saved yet: run it again" in last.reason
    assert "last words" in last.detail
    assert handle.error is not None
    assert handle.error.message == last.reason
    assert handle.log.endswith("last words\n")
    after, _ = run(Fake())
    assert after.state == ev.COMPLETE
    assert after.pid != handle.pid


def test_a_run_with_a_checkpoint_can_be_resumed_from_it() -> None:
    handle = executors.start(Fake("obey"))
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    handle.history.add(ev.CheckpointSaved(0.0, 0, 4, "here"))
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGTERM)
    ended(handle)
    assert "was ended by a signal (SIGTERM" in handle.history.reason
    assert "resume from the last checkpoint (epoch 4)" in handle.history.reason


def test_a_crash_leaves_a_traceback() -> None:
    handle, _ = run(Fake("crash"))
    assert "crashed (SIGSEGV" in handle.history.reason
    assert "in _crash" in handle.history.detail


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers keep what they try."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    return tmp_path


def test_a_run_whose_worker_crashed_in_a_trial_goes_on_in_another(folder: Path) -> None:
    """From the checkpoint, with the requests that hold; who looks on is told, and may ask for more."""
    handle = executors.start(Fake("try", count=2))
    first, events = handle.pid, collected(handle)
    handle.control.pause()
    handle.control.stop(1)
    eventually(lambda: handle.restarts == 2 and handle.history.count(ev.STOPPED) == 1, "the third worker to have heard")
    assert handle.pid != first
    assert (handle.state, handle.control.poll()) == (ev.PAUSED, [])
    told = [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(told) == 2
    assert "crashed (SIGSEGV" in told[0]
    assert told[0].endswith('while it tried "own kernel" (aten.bmm); that way is not tried again')
    handle.control.stop()
    assert ended(handle).state == ev.COMPLETE
    assert handle.history.reason == "resumed"


def test_a_run_does_not_go_on_for_ever(folder: Path) -> None:
    handle = executors.start(Fake("try", count=100))
    handle.control.pause()
    assert ended(handle).state == ev.INTERRUPTED
    assert "crashed (SIGSEGV" in handle.history.reason
    assert handle.restarts == ends.RESTARTS


def test_a_crash_without_a_trial_and_a_trial_without_a_crash_end_the_run(folder: Path) -> None:
    (folder / "kernels-x.123456789.trial").write_text('["aten.bmm 3", "own kernel"]')  # another process'
    assert run(Fake("crash"))[0].state == ev.INTERRUPTED
    handle = executors.start(Fake("spin"))
    (folder / f"kernels-x.{handle.pid}.trial").write_text('["aten.bmm 3", "own kernel"]')
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGTERM)
    assert ended(handle).state == ev.INTERRUPTED
    assert not handle.restarts


def test_a_run_that_can_not_go_on_is_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = executors.start(Fake("try", count=1))

    def another() -> None:
        raise WorkerError("can't be started")

    (busy,) = [w for w in pool.POOL._all if w.pid == handle.pid]
    monkeypatch.setattr(busy, "_another", another)
    handle.control.resume()
    assert ended(handle).state == ev.INTERRUPTED
    assert "crashed (SIGSEGV" in handle.history.reason


def test_a_worker_that_leaves_is_told() -> None:
    handle, _ = run(Fake("leave"))
    assert "ended with exit code 7" in str(handle.error)


def test_a_worker_is_given_up_although_a_child_of_it_holds_its_pipes() -> None:
    handle, _ = run(Fake("fork"))
    try:
        assert "ended with exit code 9" in str(handle.error)
    finally:
        os.kill(int(handle.history.phase.removeprefix("forked (").removesuffix(")")), signal.SIGKILL)


def test_a_worker_that_sends_nonsense_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    executors.close_all()
    code = "import os, sys; os.write(1, b'\\0\\0\\0\\2' + bytes(8) + b'no'); sys.stdin.read()"
    monkeypatch.setattr(child_process, "COMMAND", (sys.executable, "-c", code))
    handle = ended(executors.start(Fake()))
    assert "sent what can't be read" in str(handle.error)


def test_a_worker_that_can_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    executors.close_all()
    monkeypatch.setattr(child_process, "COMMAND", (sys.executable, "-c", "import no_such_module"))
    handle = ended(executors.start(Fake()))
    assert "exit code 1" in str(handle.error)
    assert "No module named 'no_such_module'" in handle.history.detail


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "memory ran out"), (-11, "crashed"), (-15, "SIGTERM"), (-77, "77")],
)
def test_every_way_to_end_has_words(code: int, words: str) -> None:
    assert words in in_words(code)


def test_not_more_workers_are_kept_than_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_IDLE", 1)
    runs = [executors.start(Fake("obey")) for _ in range(2)]
    for handle in runs:
        handle.control.stop()
        ended(handle)
    eventually(lambda: sum(gone(handle.pid) for handle in runs) == 1, "one worker to go")


def test_a_worker_that_died_idle_is_not_used() -> None:
    before, _ = run(Fake())
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    # The pool hears of it a moment after the process is gone.
    eventually(lambda: all(worker.pid != before.pid for worker in pool.POOL._all), "the pool to hear of its end")
    after, _ = run(Fake())
    assert (after.state, after.pid != before.pid) == (ev.COMPLETE, True)


class Broken:
    """A study that goes into the pipe, and does not come out."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


def test_a_study_that_can_not_be_rebuilt_is_told() -> None:
    handle = ended(executors.start(Broken()))  # type: ignore[arg-type]
    assert handle.state == ev.FAILED
    assert "not a number" in handle.history.reason
    assert run(Fake())[0].pid == handle.pid


ORPHAN = """
import os, sys, time
from hfta_nb.study import executors
from tests.executors.fakes import Fake
run = executors.start(Fake("spin"))
child = os.fork()
if not child:
    time.sleep(100)
print(run.pid, child, flush=True)
run.wait()
"""
"""Stands for a kernel that has forked a process, which holds all its pipes."""


@pytest.mark.long
def test_a_worker_goes_with_its_kernel_although_a_fork_of_that_holds_the_pipe() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ORPHAN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as kernel:
        assert kernel.stdout is not None
        pid, child = map(int, kernel.stdout.readline().split())
        kernel.kill()
        try:
            eventually(lambda: gone(pid), "the worker to end")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_that_can_not_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    executors.close_all()
    monkeypatch.setattr(child_process, "COMMAND", ("/nowhere/python",))
    with pytest.raises(WorkerError, match="can't be started"):
        executors.start(Fake())


def test_nothing_of_a_run_is_left_when_all_are_closed() -> None:
    handle = executors.start(Fake("spin"))
    events = collected(handle)
    eventually(lambda: handle.state == ev.RUNNING, "the first event")
    executors.close_all()
    assert handle.wait(DEADLINE_S) == ev.STOPPED
    assert events
    assert gone(handle.pid)
    assert not descendants("child_main")
