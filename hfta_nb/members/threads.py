"""Which threads an array's steps run on: torch's in every kernel, one alone, or one for each of several blocks.

How many threads a kernel is shared over is a setting of the thread that calls it (OpenMP's, and MKL's own). So a block
of members can run on a thread of its own, whose kernels run on it alone, beside other blocks on other threads: torch
lets go of the interpreter's lock in every kernel. Threads wait for each other once in a step then, not in every kernel.

`torch.set_num_threads` is not used: it also sets what threads that come later begin with, those of others too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

THREAD_MODES = ("kernels", "one", "blocks")
"""How the threads that torch has are used: all in every kernel, one, or one for each of as many blocks of members."""

Job = Callable[[], None]


class _Setters(NamedTuple):
    """Functions of the libraries that torch computes with; of the calling thread alone.

    Attributes:
        openmp: sets the number of threads.
        mkl: the same of MKL's own setting; gives what it was. None for a torch without MKL.
    """

    openmp: Callable[[int], None]
    mkl: Callable[[int], int] | None


@cache
def _setters() -> _Setters | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.PyDLL(str(path))  # what it is linked to is found through it
        openmp = library.omp_set_num_threads
        mkl = library.MKL_Set_Num_Threads_Local if torch.backends.mkl.is_available() else None  # type: ignore[no-untyped-call]
    except (OSError, AttributeError):
        return None
    openmp.argtypes, openmp.restype = [ctypes.c_int], None
    if mkl is not None:
        mkl.argtypes, mkl.restype = [ctypes.c_int], ctypes.c_int
    return _Setters(openmp, mkl)


def selectable(device: torch.device) -> bool:
    """Whether steps can run in more than the first of `THREAD_MODES`: with several threads on a CPU."""
    return device.type == "cpu" and available_threads() > 1 and _setters() is not None


class _Outer(threading.local):
    count = 0


_outer = _Outer()


class SingleThreaded:
    """Within, kernels that this thread calls run on it alone; afterwards on as many threads as before."""

    def __enter__(self) -> None:
        self.setters, self.before = _setters(), torch.get_num_threads()  # torch sets a new thread's number when asked
        if self.setters is not None and self.before != 1:
            _outer.count = self.before
            self.setters.openmp(1)
            self.own = 0 if self.setters.mkl is None else self.setters.mkl(1)

    def __exit__(self, *_: object) -> None:
        if self.setters is not None and self.before != 1:
            _outer.count = 0
            self.setters.openmp(self.before)
            if self.setters.mkl is not None:
                self.setters.mkl(self.own)


def available_threads() -> int:
    """How many threads torch has, within `SingleThreaded` too."""
    return _outer.count or torch.get_num_threads()


def thread_scope(way: str) -> AbstractContextManager[None]:
    """Around what is to run in this way."""
    return nullcontext() if way == "kernels" else SingleThreaded()


class _Worker:
    """A thread that does one job after another, and waits in between without taking processor time.

    Attributes:
        jobs: to do; anything that is no function comes back as it is.
        results: of each job in order what it has raised, or None.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Any] = SimpleQueue()
        self.results: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._work, name="hfta_nb block", daemon=True).start()

    def _work(self) -> None:
        with SingleThreaded():
            while True:
                self.results.put(_done(self.jobs.get()))

    def drain(self) -> None:
        """Wait until it has done all that it was given."""
        mark = object()
        self.jobs.put(mark)
        while self.results.get() is not mark:
            pass


def _done(job: Any) -> Any:
    if not callable(job):
        return job
    try:
        job()
    except BaseException as error:
        return error
    return None


_workers: list[_Worker] = []
_taken = threading.Lock()


def _forget() -> None:
    """A forked process has none of the threads."""
    global _taken
    _workers.clear()
    _taken = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run_parallel(jobs: Sequence[Job]) -> None:
    """Do all jobs, the first one here and each other on a thread of its own; all have ended when this returns.

    In turn, all here, while torch's profiler looks at this thread, or where another thread's jobs are under way.

    Raises:
        BaseException: what a job has raised, the first one's first.
    """
    if len(jobs) < 2 or torch.autograd.profiler._is_profiler_enabled or not _taken.acquire(blocking=False):
        with SingleThreaded():
            for job in jobs:
                job()
        return
    taken = _taken
    try:
        while len(_workers) < len(jobs) - 1:
            _workers.append(_Worker())
        asked = _workers[: len(jobs) - 1]
        for worker, job in zip(asked, jobs[1:], strict=True):
            worker.jobs.put(job)
        with SingleThreaded():
            jobs[0]()
        errors = [worker.results.get() for worker in asked]
    except BaseException:
        _drain()  # who interrupts a step must not find it going on
        raise
    finally:
        taken.release()
    for error in errors:
        if error is not None:
            raise error


def _drain() -> None:
    for worker in _workers:
        while True:
            try:
                worker.drain()
                break
            except BaseException:
                continue
