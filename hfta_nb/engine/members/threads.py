"""CPU threads of an array's steps: all threads in every kernel, one thread, or one thread for each of several blocks.

The number of threads of a kernel is a setting of the calling thread (in OpenMP, and separately in MKL). A block of
members can therefore run on a separate thread with single-threaded kernels while other blocks run on other threads:
torch releases the interpreter's lock in every kernel. Threads then synchronize once per step instead of in every
kernel.

`torch.set_num_threads` is not used, because it also sets the default of threads that are started later.
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
"""How torch's threads are used: all in every kernel, a single one, or one for each of as many blocks of members."""

Job = Callable[[], None]


class _Setters(NamedTuple):
    """Functions that set the number of threads for the calling thread.

    Attributes:
        openmp: sets the number of OpenMP threads.
        mkl: sets the number of MKL threads and returns the previous one; None for a torch without MKL.
    """

    openmp: Callable[[int], None]
    mkl: Callable[[int], int] | None


@cache
def _setters() -> _Setters | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.PyDLL(str(path))  # finds the libraries that it is linked to
        openmp = library.omp_set_num_threads
        mkl = library.MKL_Set_Num_Threads_Local if torch.backends.mkl.is_available() else None  # type: ignore[no-untyped-call]
    except (OSError, AttributeError):
        return None
    openmp.argtypes, openmp.restype = [ctypes.c_int], None
    if mkl is not None:
        mkl.argtypes, mkl.restype = [ctypes.c_int], ctypes.c_int
    return _Setters(openmp, mkl)


def selectable(device: torch.device) -> bool:
    """True if `THREAD_MODES` other than the first are available: on a CPU with several threads."""
    return device.type == "cpu" and available_threads() > 1 and _setters() is not None


class _Outer(threading.local):
    count = 0


_outer = _Outer()


class SingleThreaded:
    """Runs this thread's kernels single-threaded within the context."""

    def __enter__(self) -> None:
        self.setters, self.before = _setters(), torch.get_num_threads()  # this also initializes a new thread
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
    """The number of torch's threads; the same within `SingleThreaded`."""
    return _outer.count or torch.get_num_threads()


def thread_scope(way: str) -> AbstractContextManager[None]:
    """The context for steps that run in this mode."""
    return nullcontext() if way == "kernels" else SingleThreaded()


class _Worker:
    """A thread that runs jobs in order and sleeps in between.

    Attributes:
        jobs: queue of jobs; anything that is not callable is returned unchanged.
        results: for each job in order, the exception that it raised, or None.
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
        """Wait until all jobs are done."""
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
    """Forget the threads in a forked process, which has none of them."""
    global _taken
    _workers.clear()
    _taken = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run_parallel(jobs: Sequence[Job]) -> None:
    """Run all jobs, the first one on this thread and each other one on a separate thread, and wait for them.

    The jobs run in sequence on this thread while torch's profiler is active, or while another thread runs jobs.

    Raises:
        BaseException: the first exception of the jobs, in their order.
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
        chosen = _workers[: len(jobs) - 1]
        for worker, job in zip(chosen, jobs[1:], strict=True):
            worker.jobs.put(job)
        with SingleThreaded():
            jobs[0]()
        errors = [worker.results.get() for worker in chosen]
    except BaseException:
        _drain()  # an interrupted step must not go on in the background
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
