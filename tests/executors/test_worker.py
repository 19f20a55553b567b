"""Properties of worker processes: output, environment, reuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hfta_nb import events as ev
from hfta_nb.study import executors
from hfta_nb.study.executors import pool
from tests.executors.fakes import Fake
from tests.executors.watching import ended, run
from tests.polling import eventually, gone

pytestmark = pytest.mark.as_started

ROOT = Path(__file__).resolve().parents[2]


def told(**options: object) -> dict[str, object]:
    """What a worker says of its surroundings."""
    handle, _ = run(Fake("tell"), **options)
    found: dict[str, object] = json.loads(handle.history.phase.removeprefix("telling (").removesuffix(")"))
    return found | {"pid": handle.pid}


def test_what_own_code_prints_does_not_disturb() -> None:
    handle, events = run(Fake("chatter"))
    assert handle.state == ev.COMPLETE
    assert len(events) == 5
    eventually(lambda: "xxx" in handle.log, "what was printed")
    assert len(handle.log) < 100_000


def test_own_code_finds_nothing_to_read() -> None:
    handle, _ = run(Fake("ask"))
    assert handle.history.reason.startswith("EOFError")


def test_a_job_that_closes_its_output_harms_no_later_one() -> None:
    assert run(Fake("close_output"))[0].state == ev.COMPLETE
    assert run(Fake())[0].state == ev.COMPLETE


def test_a_warm_worker_is_used_again_and_two_runs_have_two() -> None:
    first, second = executors.start(Fake("obey")), executors.start(Fake("obey"))
    assert first.pid != second.pid
    eventually(lambda: first.state == second.state == ev.RUNNING, "both at the same time")
    second.control.stop()
    assert ended(second).state == ev.COMPLETE
    assert first.state == ev.RUNNING
    assert run(Fake())[0].pid == second.pid
    first.control.stop()
    assert ended(first).state == ev.COMPLETE


def test_a_prewarmed_worker_takes_the_first_run() -> None:
    executors.close_all()
    executors.prewarm()
    executors.prewarm()
    (waiting,) = pool.POOL._idle
    eventually(executors.warm, "the worker to be ready")
    found = told()
    assert found["pid"] == waiting.pid
    assert found["compiler"] is False  # importing it takes as long as torch, and no run needs it


def test_surroundings_are_those_of_the_kernel_when_it_starts_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    before = told()
    assert before["deaf"] is True
    assert before["wait"] == "PASSIVE"
    assert before["python path"] is None
    assert (before["torch"], before["omp"]) == (executors.threads(), str(executors.threads()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN_VARIABLE", "set")
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # which scikit-learn sets when it is imported
    monkeypatch.syspath_prepend("/nowhere/at/all")
    after = told()
    assert after["pid"] == before["pid"]
    assert (after["directory"], after["own"]) == (str(tmp_path), "set")
    assert after["path"] == sys.path
    monkeypatch.delenv("OWN_VARIABLE")
    assert told()["own"] is None


def test_a_worker_whose_libraries_have_read_other_settings_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = told()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HFTA_NB_THREADS", "2")
    after = told()
    assert after["pid"] != before["pid"]
    assert (after["cuda"], after["torch"], after["omp"]) == ("", 2, "2")
    eventually(lambda: gone(before["pid"]), "the end of the other")  # type: ignore[arg-type]


KERNEL = """
import signal, sys
from hfta_nb.study import executors
from tests.executors.fakes import Fake
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
run = executors.start(Fake("torch", gated=True))
run.subscribe(lambda event: print(getattr(event, "phase", ""), flush=True))
print(run.pid, flush=True)
sys.stdin.readline()
run.control.resume()
run.wait()
"""
"""Stands for a kernel with a run."""


def test_neither_an_interrupt_ends_the_run_nor_does_it_outlive_the_kernel() -> None:
    """The kernel is interrupted with all its group, while the worker starts and while it works; then it is killed,
    while the worker is deep in torch."""
    command = [sys.executable, "-c", KERNEL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as kernel:  # type: ignore[call-overload]
        try:
            pid = int(kernel.stdout.readline())
            os.killpg(kernel.pid, signal.SIGINT)
            assert kernel.stdout.readline() == "interrupted\n"
            kernel.stdin.write("go on\n")
            kernel.stdin.flush()
            said = iter(kernel.stdout.readline, "multiplying\n")
            assert "training\n" in list(said)
            os.killpg(kernel.pid, signal.SIGINT)
            assert kernel.stdout.readline() == "interrupted\n"
            assert not gone(pid)
        finally:
            kernel.kill()
    eventually(lambda: gone(pid), "the worker to end")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads about: just what is looked at here
def test_a_worker_in_a_fork_of_this_process_is_another() -> None:
    before, _ = run(Fake())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, b"none" if not pool.POOL._all else b"some")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"none"
    os.close(read)
    os.waitpid(child, 0)
    assert run(Fake())[0].pid == before.pid
