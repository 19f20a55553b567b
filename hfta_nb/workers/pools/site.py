"""The workers of one run: children of the process that has the run, which are processes or actors of Ray."""

from __future__ import annotations

import queue
from collections.abc import Callable

from hfta_nb.errors import WorkerError
from hfta_nb.records.events import Request, to_json
from hfta_nb.workers.pools.reports import Beat, Lost, Order, Report
from hfta_nb.workers.processes import pickling
from hfta_nb.workers.processes.child import Send, version
from hfta_nb.workers.processes.child_process import Child, Ended
from hfta_nb.workers.processes.frames import Message

VERSIONS = "install the versions of Python, Ray and hfta_nb of this process on all nodes, or those of the nodes here"

_TOLD_CHARACTERS = 500


class ChildWorker:
    """A worker that is a child; see `Worker`.

    Args:
        start: starts the child, given who hears its messages and its end.
        tell: called with each report, or with an error that ends the run, on any thread.
        at_once: whether it takes orders before it is ready.
    """

    def __init__(
        self,
        start: Callable[[Send, Ended], Child],
        tell: Callable[[ChildWorker, Report | WorkerError], None],
        at_once: bool,
    ) -> None:
        self._tell, self._at_once = tell, at_once
        self.child = start(self._hear, self._ended)

    @property
    def name(self) -> str:
        return self.child.name

    @property
    def ready(self) -> bool:
        return self._at_once or self.child.ready

    def train(self, order: Order) -> None:
        self.child.send({"call": order.number}, pickling.packed(order))

    def send(self, order: int, request: Request) -> None:
        self.child.send({"call": order, "request": to_json(request)})

    def kill(self) -> None:
        self.child.kill()

    def _hear(self, message: Message, blob: bytes) -> None:
        if "ready" in message and message["version"] != version():
            error = WorkerError("a node of the cluster has another version of hfta_nb", where=self.name,
                                got=message["version"], accepted=version(), remedy=VERSIONS)  # fmt: skip
            self._tell(self, error)
        else:
            self._tell(self, pickling.unpacked(blob) if blob else Beat())

    def _ended(self, words: str, crashed: bool) -> None:
        printed = " ".join(self.child.log.text.split())[-_TOLD_CHARACTERS:]
        self._tell(self, Lost(f"{words}; it printed: {printed}" if printed else words))


class ChildSite:
    """Where the workers of one run are; see `Site`.

    Args:
        slots: the most workers at a time.
    """

    elastic = False

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._reports: queue.SimpleQueue[tuple[ChildWorker, Report | WorkerError]] = queue.SimpleQueue()
        self._workers: list[ChildWorker] = []

    def started(self, start: Callable[[Send, Ended], Child]) -> ChildWorker:
        """A worker that is started so, whose reports are waited for."""
        made = ChildWorker(start, lambda *report: self._reports.put(report), at_once=not self.elastic)
        self._workers = [*(worker for worker in self._workers if worker.child.alive), made]
        return made

    def wait(self, timeout_s: float) -> list[tuple[ChildWorker, Report]]:
        """See `Site`.

        Raises:
            WorkerError: a worker can't be used.
        """
        found: list[tuple[ChildWorker, Report]] = []
        try:
            reports = [self._reports.get(timeout=timeout_s)]
        except queue.Empty:
            return []  # nothing has come in time
        while not self._reports.empty():
            reports.append(self._reports.get())
        for worker, report in reports:
            if isinstance(report, WorkerError):
                raise report
            found.append((worker, report))
        return found

    def close(self) -> None:
        """See `Site`."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.child.reap()
