"""Processes that make the batches of data sets, and are replaced where they end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from hfta_nb.data.demand import Demand
from hfta_nb.data.samples import Samples, leaves
from hfta_nb.data.shared_slots import Folder, Layout, Slot
from hfta_nb.data.sources import DatasetSource
from hfta_nb.data.streams import Stream
from hfta_nb.errors import DataError
from hfta_nb.errors.caught_warnings import caught_warnings

DEATHS = 5
"""Processes that one batch may end until it is given up."""

SURPLUS = 16
"""Batches in a row that must do with fewer processes before one is ended."""


@dataclass(frozen=True)
class Job:
    """A batch to be made: the arguments of `DatasetSource.batch`, of the source with this name."""

    part: str
    batch_size: int
    seed: int
    epoch: int
    number: int


@dataclass(frozen=True)
class Made:
    """A batch that was made.

    Attributes:
        layout: of the batch in its slot; None where the source raised.
        error: what it raised.
        wall_s, cpu_s: how long the worker took, and its processor time.
    """

    layout: Layout | None
    error: Exception | None
    wall_s: float
    cpu_s: float


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    job: Job | None = None
    slot: Slot | None = None


def possible() -> bool:
    """Whether this process can start workers: data sets reach them by fork, as those of a `DataLoader` do on Linux."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def readable(stream: Stream) -> dict[str, DatasetSource] | None:
    """The parts of a stream that workers can read, by name: map-style data sets; None if training is none of them, or
    what is read depends on what was read before."""
    if stream.held.varies:
        return None
    parts = {"training": stream.training, "validation": stream.validation}
    found = {name: s for name, s in parts.items() if isinstance(s, DatasetSource) and not s.iterable}
    on_host = all(t.device.type == "cpu" for part in stream.first for t in leaves(part))
    return found if "training" in found and on_host and possible() else None


class Workers:
    """Processes that make batches ahead of their consumer, as few as keep up with it.

    A batch depends on its `Job` alone. Where a worker ends (it was killed, or ran out of memory), another one takes its
    place and makes the same batch again. Workers compute on one thread each, as those of a `DataLoader` do.

    Args:
        sources: by name.
        demand: chooses the number of processes.

    Attributes:
        made: how many batches were made.
        cpu_s: processor seconds that they took.
        replaced: how many workers ended and were replaced.
    """

    def __init__(self, sources: Mapping[str, DatasetSource], demand: Demand | None = None) -> None:
        self.demand = demand or Demand()
        self.made, self.cpu_s, self.replaced = 0, 0.0, 0
        self._sources = dict(sources)
        self._folder = Folder()
        self._context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        self._free: list[Slot] = []
        self._requested: deque[Job] = deque()
        self._done: dict[Job, tuple[Made, Slot]] = {}
        self._dropped: set[Job] = set()  # that are being made, and nobody wants any more
        self._deaths: dict[Job, int] = {}
        self._given_s: float | None = None
        self._surplus = 0
        self._end = weakref.finalize(self, _ended, os.getpid(), self._workers, self._folder)

    @property
    def folder(self) -> Path:
        """Of the shared memory; removed on `close`."""
        return self._folder.path

    @property
    def processes(self) -> list[int]:
        """Ids of the processes."""
        return [worker.process.pid for worker in self._workers]

    @property
    def ahead(self) -> int:
        """The most batches of a pass that are made before they are taken: one per process, and one that is ready."""
        return max(1, len(self._workers)) + 1

    def submit(self, job: Job) -> None:
        """Ask for a batch; it is to be taken or dropped. Returns at once."""
        self._requested.append(job)
        self._assign()

    def take(self, job: Job) -> tuple[Samples, Samples]:
        """A batch that was asked for; waits for it.

        Raises:
            DataError: the source raised, or every process that makes this batch ends.
        """
        if self._given_s is not None:
            self.demand.used(time.perf_counter() - self._given_s)
        while job not in self._done:
            self.receive()
        slot, layout = self.held(job)
        found = slot.read(layout)
        self.release(slot)
        self._given_s = time.perf_counter()
        return found

    def ready(self, job: Job) -> bool:
        """Whether a batch that was asked for is made, or can't be."""
        return job in self._done

    def held(self, job: Job) -> tuple[Slot, Layout]:
        """Where a batch is that is ready; its slot is to be released.

        Raises:
            DataError: as `take`.
        """
        made, slot = self._done.pop(job)
        self._deaths.pop(job, None)
        if made.error is not None:
            self.release(slot)
            raise made.error
        assert made.layout is not None  # where there is no error
        return slot, made.layout

    def release(self, slot: Slot) -> None:
        """Let other batches use a slot."""
        self._free.append(slot)
        self._aim()
        self._assign()

    def drop(self, jobs: Sequence[Job]) -> None:
        """Take back what was asked for."""
        self._given_s = None
        for job in jobs:
            if job in self._done:
                self._free.append(self._done.pop(job)[1])
            elif job in self._requested:
                self._requested.remove(job)
            else:
                self._dropped.add(job)

    def close(self) -> None:
        """End all processes and remove the shared memory."""
        self._end()

    # Processes.

    def _aim(self) -> None:
        """Bring the number of processes closer to what is needed."""
        needed = self.demand.processes
        self._surplus = self._surplus + 1 if needed < len(self._workers) else 0
        if needed > len(self._workers):
            self._start()
        elif self._surplus >= SURPLUS:
            idle = next((w for w in self._workers if w.job is None), None)
            if idle is not None:
                self._surplus = 0
                self._workers.remove(idle)
                _ask_to_end(idle)

    def _start(self) -> None:
        mine, theirs = self._context.Pipe()
        others = [mine, *(w.pipe for w in self._workers)]
        arguments = (theirs, others, self._sources, self._folder.path)
        process = self._context.Process(target=_serve, args=arguments, name="hfta_nb data", daemon=True)
        with caught_warnings():  # that a process with threads forks: see `possible`
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._workers.append(_Worker(process, mine))

    def _assign(self) -> None:
        """Give batches that are asked for to idle processes, in order."""
        if self._requested and not self._workers:
            self._start()
        for worker in list(self._workers):
            if not self._requested:
                return
            if worker.job is not None:
                continue
            worker.slot = self._free.pop() if self._free else self._folder.slot()
            worker.job = self._requested.popleft()
            try:
                worker.pipe.send((str(worker.slot.path), worker.job))
            except OSError:
                self._put_another(worker)

    @property
    def handles(self) -> list[Any]:
        """What `multiprocessing.connection.wait` takes: one is ready when there is something to receive."""
        return [handle for w in self._workers for handle in (w.pipe, w.process.sentinel)]

    def receive(self, timeout_s: float | None = None) -> None:
        """Wait for a batch, or for the end of a process, and give new work to those that are idle."""
        self._assign()
        waited: dict[Any, _Worker] = {w.pipe: w for w in self._workers}
        waited |= {w.process.sentinel: w for w in self._workers}
        for worker in {id(waited[ready]): waited[ready] for ready in wait(list(waited), timeout_s)}.values():
            try:
                made: Made | None = worker.pipe.recv() if worker.pipe.poll() else None
            except (EOFError, OSError):
                made = None
            if made is None:
                self._put_another(worker)
                continue
            job, slot = worker.job, worker.slot
            if job is None or slot is None:  # it answers jobs only
                continue
            worker.job = worker.slot = None
            self.made += 1
            self.cpu_s += made.cpu_s
            self.demand.made(made.wall_s)
            if job in self._dropped:
                self._dropped.remove(job)
                self._free.append(slot)
            else:
                self._done[job] = made, slot
        self._assign()

    def _put_another(self, worker: _Worker) -> None:
        """A process has ended: its batch is made first of all, by another one."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        self.replaced += 1
        job, slot = worker.job, worker.slot
        if job is not None and slot is not None:
            if job in self._dropped:
                self._dropped.remove(job)
                self._free.append(slot)
            elif self._died(job) >= DEATHS:
                code = worker.process.exitcode
                what = f"{DEATHS} processes ended while they read batch {job.number} (the last with code {code})"
                remedy = "a killed process (code -9) may have run out of memory"
                where = f"{self._sources[job.part].name}, pass {job.epoch + 1}"
                self._done[job] = Made(None, DataError(what, where=where, remedy=remedy), 0.0, 0.0), slot
            else:
                self._free.append(slot)
                self._requested.appendleft(job)
        self._start()

    def _died(self, job: Job) -> int:
        self._deaths[job] = self._deaths.get(job, 0) + 1
        return self._deaths[job]


def _ask_to_end(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.pipe.send(None)
    worker.pipe.close()
    worker.process.join()


def _ended(owner: int, workers: list[_Worker], folder: Folder) -> None:
    if os.getpid() != owner:  # a forked process has a copy of all this
        return
    for worker in workers:
        worker.process.kill()  # it may be in the midst of a batch
    for worker in workers:
        worker.process.join()
        worker.pipe.close()
    workers.clear()
    folder.close()


def _serve(pipe: Connection, others: Sequence[Connection], sources: Mapping[str, DatasetSource], folder: Any) -> None:
    """Make batches until there is nobody to make them for."""
    for other in others:  # ends of pipes that the parent holds: they must close where it ends
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole process group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    slots: dict[str, Slot] = {}
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            shutil.rmtree(folder, ignore_errors=True)  # the parent was killed
            return
        if request is None:
            return
        path, job = request
        made = _made(job, sources, slots.setdefault(path, Slot(path)))
        with contextlib.suppress(OSError):
            pipe.send(made)


def _made(job: Job, sources: Mapping[str, DatasetSource], slot: Slot) -> Made:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    layout: Layout | None = None
    error: Exception | None = None
    try:
        x, y = sources[job.part].batch(job.batch_size, job.seed, job.epoch, job.number)
        layout = slot.write(x, y)
    except DataError as raised:
        error = raised
    except Exception as raised:
        what = f"a worker process failed with {type(raised).__name__}: {raised}"
        error = DataError(what, where=f"{sources[job.part].name}, pass {job.epoch + 1}, batch {job.number}")
    return Made(layout, error, time.perf_counter() - wall_s, time.process_time() - cpu_s)
