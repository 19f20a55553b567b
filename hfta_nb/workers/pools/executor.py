"""What an executor is: it opens a site, which has workers, each of which trains one order at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hfta_nb.data import Stream
from hfta_nb.errors import FleetError
from hfta_nb.records.events import Request
from hfta_nb.train import Settings
from hfta_nb.workers.fleet.flotillas import ALPHA
from hfta_nb.workers.fleet.rates import checked, positive, within
from hfta_nb.workers.fleet.rounds import PARADIGMS
from hfta_nb.workers.pools.reports import Order, Report
from hfta_nb.workers.processes.ends import RESTARTS


@dataclass(frozen=True)
class Terms:
    """How the groups of a run are given to workers.

    Attributes:
        rates: measured rates in samples/s by the name of a group, "array 0" for the first; see `Study.profile`. None to
            estimate them from the number of parameters.
        paradigm: "alone", "local" or "global"; see `hfta_nb.fleet.Rounds`.
        delta: as for `hfta_nb.fleet.create_flotilla`, in samples/s. Groups with a stream each need no similar rates.
        alpha: share of the workers, from 0 to 1, below which a "global" flotilla stops, is checkpointed and planned
            anew.
        most: the most devices of one group, which train it together; "alone" gives each group one.
        restarts: how often a group is started again after its worker died, without a checkpoint in between. Then its
            members have failed.
        checkpoint_every_s: seconds between two checkpoints of a group.
        silent_s: a worker that is silent for so long counts as dead. It reports every few seconds, also while a long
            step computes.

    Raises:
        FleetError: one of them can't be used.
    """

    rates: Mapping[str, Sequence[float]] | None = None
    paradigm: str = "alone"
    delta: float = float("inf")
    alpha: float = ALPHA
    most: int = 1
    restarts: int = RESTARTS
    checkpoint_every_s: float = 10.0
    silent_s: float = 120.0

    def __post_init__(self) -> None:
        if self.rates is not None and not isinstance(self.rates, Mapping):
            accepted = "a mapping from the name of a group to its rates, as Study.profile().rates, or None"
            raise FleetError("no rates", where="rates", got=self.rates, accepted=accepted)
        for name, rates in (self.rates or {}).items():
            checked(f"rates[{name!r}]", rates)
        if self.paradigm not in PARADIGMS:
            accepted = ", ".join(PARADIGMS)
            raise FleetError("no such paradigm", where="paradigm", got=self.paradigm, accepted=accepted)
        positive(self.most, "most")
        if isinstance(self.restarts, bool) or not isinstance(self.restarts, int) or self.restarts < 0:
            raise FleetError("not a number of starts", where="restarts", got=self.restarts, accepted="0, 1, 2, ...")
        within(self.delta, "delta", 0.0, math.inf)
        within(self.alpha, "alpha", 0.0, 1.0)
        within(self.checkpoint_every_s, "checkpoint_every_s", 0.0, math.inf)
        within(self.silent_s, "silent_s", 0.0, math.inf)


class Worker(Protocol):
    """Trains one order at a time on a device."""

    @property
    def name(self) -> str:
        """For people: "process 1234"."""

    @property
    def ready(self) -> bool:
        """Whether it takes orders; it has no device before."""

    def train(self, order: Order) -> None:
        """Begin an order."""

    def send(self, order: int, request: Request) -> None:
        """Pass a request on to the order of this number."""

    def kill(self) -> None:
        """End it at once; what it reports afterwards is lost."""


class Server(Protocol):
    """One stream for several workers; see `hfta_nb.data.StreamServer`."""

    def consumer(self, name: str) -> Stream:
        """The stream for one of them, to be sent to it."""

    def leave(self, name: str) -> None:
        """Wait for this one no longer."""

    def relax(self, on: bool) -> None:
        """Let nobody wait for others, or wait again."""

    def close(self) -> None:
        """End it."""


class Site(Protocol):
    """Where the workers of one run are.

    Attributes:
        slots: the most workers at a time.
        elastic: whether idle workers are to be ended, because somebody else could use their devices.
    """

    slots: int
    elastic: bool

    def worker(self, slots: Sequence[int]) -> Worker:
        """Start a worker with these slots, whose devices train each of its arrays together; returns at once."""

    def wait(self, timeout_s: float) -> Sequence[tuple[Worker, Report]]:
        """Reports of workers, oldest first; waits for the first one, up to `timeout_s` seconds."""

    def serve(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> Server | None:
        """Serve a stream to several workers; None where they can't share one.

        Args:
            stream: of a map-style dataset.
            consumers: their names.
            on_dropped: see `hfta_nb.data.StreamServer`.

        Raises:
            DataError: this stream can't be served.
        """

    def close(self) -> None:
        """End all workers."""


class Executor(Protocol):
    """Where a study trains its groups; see `Processes` and `OnRay`.

    Attributes:
        terms: how groups are given to workers.
    """

    @property
    def terms(self) -> Terms:
        """How groups are given to workers."""

    def reach(self, devices: int) -> None:
        """Find out quickly, before a run begins, whether there is where to open.

        Args:
            devices: of a slot.

        Raises:
            WorkerError: there is not.
        """

    def open(self, settings: Settings, groups: int, devices: int) -> Site:
        """Make room for the workers of a run.

        Args:
            settings: of the run, which all workers get.
            groups: how many there are to train.
            devices: of a slot.

        Raises:
            WorkerError: there are not so many.
        """
