"""The ranks beside rank 0, as rank 0 sees them: children, which it starts, tells what to do, and ends."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hfta_nb.errors import DistributedError, WorkerError
from hfta_nb.workers.distributed.grid_products import Grid
from hfta_nb.workers.distributed.rank_follower import Follower
from hfta_nb.workers.distributed.ranks import Meet, Ranks, connected_by, lines_of, met_in_file
from hfta_nb.workers.processes import cores, pickling
from hfta_nb.workers.processes.child import Send, packed, surroundings
from hfta_nb.workers.processes.child_process import Child, ChildProcess, Ended
from hfta_nb.workers.processes.frames import Message

TIMEOUT_S = 300.0
"""How long an exchange between ranks may take before the run fails."""

_END_S = 5.0


class Followers:
    """The ranks 1, 2, ... of one machine, each a process with its device and its share of the CPU's threads.

    Args:
        size: how many ranks there are, rank 0 among them.
        device: of rank 0; of GPUs the others take those that follow.
        timeout_s: how long an exchange may take; `TIMEOUT_S` by default.

    Attributes:
        ranks: rank 0 among them.

    Raises:
        WorkerError: there are fewer cores.
        DistributedError: a process does not start, or they can't meet.
    """

    ranks: Ranks
    start_s: float | None = 120.0
    """How long the others may take to start."""

    def __init__(self, size: int, device: torch.device, timeout_s: float | None = None) -> None:
        self.size, self.device, self.timeout_s = size, device, timeout_s or TIMEOUT_S
        self._children: list[Child] = []
        self._ready: set[int] = set()
        self._gone: dict[int, str] = {}
        self._changed = threading.Condition()
        self._calls = 0
        self._grid: Grid | None = None
        self._undo = contextlib.ExitStack()
        try:
            store, host, meet = self.open()
            for rank in range(1, size):
                self._children.append(self.start(rank, partial(self._hear, rank), partial(self._ended, rank)))
            with self.watched():
                self._wait_ready()
                for rank in range(1, size):
                    self._call([rank], "join", meet, rank, size, self.device_of(rank), self.timeout_s)
                self.ranks = connected_by(store, 0, size, device, self.timeout_s, host)
                self._lines = partial(lines_of, store, 0, size, device, self.timeout_s, host)
        except BaseException:
            self.close()
            raise

    def send(self, command: str, *given: Any) -> None:
        """Tell every other rank to do something, in order; see `Follower`.

        Raises:
            DistributedError: one of them is gone.
        """
        if self._gone:
            raise _lost(self._gone)
        self._call(range(1, self.size), command, *given)

    def grid(self) -> Grid:
        """The ranks as a square; the others make it when they are told to build a mesh."""
        if self._grid is None:
            self._grid = Grid(self.ranks, *self._lines())
        return self._grid

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, an exchange that fails is explained by what has become of the other ranks."""
        try:
            yield
        except DistributedError as error:
            with self._changed:  # one that has ended for a reason of its own may be told of in a moment
                self._changed.wait_for(lambda: bool(_own(self._gone)), _END_S)
                found = dict(self._gone)
            if not found:
                raise
            raise _lost(found) from error

    def close(self) -> None:
        """End the other ranks."""
        children, self._children = self._children, []
        with self._undo:
            for child in children:
                child.kill()
            for child in children:
                child.reap()

    # Where the others are: on this machine.

    def open(self) -> tuple[Any, str, Meet]:
        """Find torch's store by which the ranks meet, this machine's address, and how the others find both."""
        self._threads = torch.get_num_threads()
        if self.device.type == "cpu":
            cores.check_processes("devices", self.size)
            self._undo.callback(torch.set_num_threads, self._threads)
            self._threads = max(1, self._threads // self.size)
            torch.set_num_threads(self._threads)
        place = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="hfta_nb-ranks-"))
        meet = partial(met_in_file, str(Path(place) / "store"), self.size)
        return *meet(0), meet

    def start(self, rank: int, hear: Send, ended: Ended) -> Child:
        """Start another rank."""
        own = dict.fromkeys(cores.COUNTS, str(self._threads))
        try:
            child = ChildProcess(f"rank {rank}", own, hear, ended, captured=False)
        except WorkerError as error:
            raise DistributedError(f"of a rank, {error.what}", where=error.where) from error
        child.send({"task": surroundings(self._threads)}, packed(Follower))
        return child

    def device_of(self, rank: int) -> str:
        """The device of another rank, as that sees it."""
        return "cpu" if self.device.type == "cpu" else f"cuda:{(self.device.index or 0) + rank}"

    # Within.

    def _call(self, ranks: Iterable[int], command: str, *given: Any) -> None:
        payload = pickling.packed(given)
        self._calls += 1
        for rank in ranks:
            self._children[rank - 1].send({"call": self._calls, "command": command}, payload)

    def _wait_ready(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._gone or len(self._ready) == self.size - 1, self.start_s)
            late = [rank for rank in range(1, self.size) if rank not in self._ready]
            if late:
                raise _lost(self._gone or {late[0]: "did not start"})

    def _hear(self, rank: int, message: Message, _: bytes) -> None:
        if "ready" in message:
            with self._changed:
                self._ready.add(rank)
                self._changed.notify_all()

    def _ended(self, rank: int, words: str, _: bool) -> None:
        with self._changed:
            self._gone[rank] = words
            self._changed.notify_all()


def _own(found: Mapping[int, str]) -> dict[int, str]:
    """Of the ranks that have ended, those that have not only lost another one."""
    return {rank: why for rank, why in found.items() if not why.startswith(DistributedError.__name__)}


def _lost(found: Mapping[int, str]) -> DistributedError:
    what = "; ".join(f"rank {rank} {why}" for rank, why in (_own(found) or found).items())
    return DistributedError(what, where="devices", remedy="run(resume=True) goes on from the last checkpoint")
