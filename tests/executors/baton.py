"""An executor without processes, for tests of what a pool does with its workers: one of them runs at a time.

Workers are threads that hand a baton on with each report, so that the order of reports is the same in each run, and a
worker can be made to die or to fall silent at any report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfta_nb.records.events import Control, Request
from hfta_nb.workers.pools import Terms
from hfta_nb.workers.pools.reports import Done, Lost, Order, Report, Saved
from hfta_nb.workers.pools.task import perform
from hfta_nb.workers.processes import pickling

LONGEST_S = 20.0

Fault = Callable[["Runner", Report], bool]


class Dead(BaseException):
    """Raised in a worker that was killed."""


@dataclass(frozen=True)
class Baton:
    """Trains groups in threads that take turns.

    Args:
        workers: at most.
        terms: see `Terms`.
        dies: whether a worker dies in place of a report.
        elastic: as of a site.
    """

    workers: int = 2
    terms: Terms = field(default_factory=Terms)
    dies: Fault = lambda worker, report: False
    elastic: bool = False

    def reach(self, devices: int) -> None:
        pass

    def open(self, settings: Any, groups: int, devices: int = 1) -> Track:
        return Track(settings, self)


class Track:
    def __init__(self, settings: Any, baton: Baton) -> None:
        self.slots, self.elastic = baton.workers, baton.elastic
        self.made: list[Runner] = []
        self._settings, self._dies = pickling.dumps(settings, {}), baton.dies
        self._next = 0

    def worker(self, slots: Sequence[int]) -> Runner:
        self.made.append(Runner(f"runner {len(self.made)}", self._settings, self._dies))
        return self.made[-1]

    def serve(self, stream: Any, consumers: Sequence[str], on_dropped: Any) -> None:
        """One runner runs at a time: it could not wait for another."""

    def wait(self, timeout_s: float) -> list[tuple[Runner, Report]]:
        running = [runner for runner in self.made if runner.thread is not None]
        if not running:
            return []
        self._next += 1
        runner = running[self._next % len(running)]
        return [(runner, report) for report in runner.step()]

    def close(self) -> None:
        for runner in self.made:
            runner.kill()


class Runner:
    ready = True

    def __init__(self, name: str, settings: bytes, dies: Fault) -> None:
        self.name, self._settings, self._dies = name, settings, dies
        self.orders: list[Order] = []
        self.requests: list[Request] = []
        self.thread: threading.Thread | None = None
        self.dead = False
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._reports: list[Report] = []
        self._over = False
        self._control = Control()

    def train(self, order: Order) -> None:
        assert self.thread is None
        self.orders.append(order)
        self._control, self._over = Control(), False
        self.thread = threading.Thread(target=self._train, args=(pickling.packed(order),), daemon=True)
        self.thread.start()

    def send(self, order: int, request: Request) -> None:
        self.requests.append(request)
        if order == self.orders[-1].number:
            self._control.post(request)

    def kill(self) -> None:
        self.dead = True
        if self.thread is not None:
            self._go.release()
            self.thread.join(LONGEST_S)
            assert not self.thread.is_alive()
            self.thread = None

    def step(self) -> list[Report]:
        """Let it run to its next report."""
        self._go.release()
        assert self._came.acquire(timeout=LONGEST_S)
        found, self._reports = self._reports, []
        if self._over:
            assert self.thread is not None
            self.thread.join(LONGEST_S)
            self.thread = None
        return found

    def _train(self, order: bytes) -> None:
        self._go.acquire()
        try:
            if not self.dead:
                settings = pickling.loads(self._settings)[0]
                perform(settings, pickling.unpacked(order), self._control, self._emit)
        except Dead:
            pass  # the worker was killed: whoever waits below sees that it is over
        self._over = True
        self._came.release()

    def _emit(self, report: Report) -> None:
        if self._dies(self, report):
            self._reports.append(Lost("died of a test"))
            raise Dead
        self._reports.append(pickling.unpacked(pickling.packed(report)))
        # Within a step, whose random numbers are torch's, nobody may cut in; after the last report comes the end.
        if isinstance(report, Saved | Done):
            return
        self._came.release()
        self._go.acquire()
        if self.dead:
            raise Dead
