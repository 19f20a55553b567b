"""Jobs on separate threads, and single-threaded execution."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest
import torch

from hfta_nb.engine.members import threads

pytestmark = pytest.mark.usefixtures("two_threads")


def _threads() -> int:
    return torch.get_num_threads()


def test_what_runs_alone_leaves_no_trace() -> None:
    seen = {}
    beside = threading.Thread(target=lambda: seen.update(beside=_threads()))

    def within() -> None:
        with threads.SingleThreaded():
            seen["within"], seen["at hand"] = _threads(), threads.available_threads()
            with threads.SingleThreaded():
                seen["twice"] = threads.available_threads()
            beside.start()
            beside.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within()
    seen["after"] = _threads()
    assert seen == {"within": 1, "at hand": 2, "twice": 2, "beside": 2, "after": 2}


def test_jobs_run_beside_each_other_on_one_thread_each() -> None:
    here, there = threading.Event(), threading.Event()
    counts = []

    def first() -> None:
        here.set()
        assert there.wait(60)
        counts.append(_threads())

    def second() -> None:
        there.set()
        assert here.wait(60)
        counts.append(_threads())

    for _ in range(3):
        here.clear()
        there.clear()
        threads.run_parallel([first, second])
    assert counts == [1] * 6
    assert sum(t.name == "hfta_nb block" for t in threading.enumerate()) <= 3  # made once, not each time


def test_the_first_error_comes_out_when_all_jobs_have_ended() -> None:
    ended = []

    def fails() -> None:
        raise ValueError("of the second")

    def late() -> None:
        time.sleep(0.02)
        ended.append(True)
        raise TypeError("of the third")

    for _ in range(2):
        with pytest.raises(ValueError, match="of the second"):
            threads.run_parallel([lambda: None, fails, late])
    assert ended == [True, True]
    threads.run_parallel([lambda: ended.append(True)] * 3)
    assert len(ended) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.run_parallel([lambda: None, lambda: None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, as there are threads
        child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.run_parallel([lambda: done.append(1), lambda: done.append(2)])
        os._exit(0 if sorted(done) == [1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
