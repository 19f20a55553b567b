"""The workers of this process: idle ones are reused, and each concurrent run has its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

from hfta_nb.errors import WorkerError
from hfta_nb.study.executors.worker import Worker

MOST_IDLE = 2
"""Number of idle workers that are kept warm; each takes about 300 MB."""


class Pool:
    """Workers, busy and idle."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a fork, which must neither end the workers of its parent nor share their pipes."""
        self._lock = threading.Lock()
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []

    def take(self) -> Worker:
        """An idle worker that is equivalent to a new one, else a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive and worker.fresh:
                    return worker
                worker.kill()
            return self._start()

    def another(self) -> Worker:
        """A new worker after a crash."""
        with self._lock:
            return self._start()

    def prewarm(self) -> None:
        """Start a worker in the background, so that the first run does not wait for torch's import.

        Does nothing if a worker is idle.
        """
        with self._lock:
            self._idle = [worker for worker in self._idle if worker.alive]
            if not self._idle:
                self._idle.append(self._start())

    def warm(self) -> bool:
        """Whether a worker can begin a job at once."""
        with self._lock:
            return any(worker.alive and worker.child.ready and worker.fresh for worker in self._idle)

    def close(self, detached: bool = True) -> None:
        """End all workers and their jobs, also `detached` ones.

        When this process ends, the other ones end automatically.
        """
        with self._lock:
            workers, self._idle = [w for w in self._all if detached or not w.detached], []
        for worker in workers:
            worker.kill()
        for worker in workers:
            with contextlib.suppress(WorkerError):
                worker.child.reap()

    def _start(self) -> Worker:
        worker = Worker(self._put_back, self._forget, self.another)
        self._all.add(worker)
        return worker

    def _put_back(self, worker: Worker) -> None:
        with self._lock:
            if worker not in self._all:
                return
            self._idle.append(worker)
            extra = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if extra is not None:
            extra.kill()

    def _forget(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
            with contextlib.suppress(ValueError):
                self._idle.remove(worker)


POOL = Pool()
"""The pool of this process."""

prewarm, warm, close_all = POOL.prewarm, POOL.warm, POOL.close

atexit.register(close_all, detached=False)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget)
