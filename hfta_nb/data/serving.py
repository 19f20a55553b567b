"""One stream for the arrays of several processes: a server makes each batch once, for all of them, in shared memory."""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from hfta_nb.data.demand import Demand
from hfta_nb.data.served import Client, ServedSource
from hfta_nb.data.shared_slots import Layout, Slot
from hfta_nb.data.streams import Stream
from hfta_nb.data.workers import Job, Workers, readable
from hfta_nb.errors import DataError

WINDOW = 4
"""Batches by which the fastest consumer may be ahead of the slowest."""

PATIENCE_S = 60.0
"""The others wait so long for a slow consumer before it is dropped."""


LEFT = "it left"
WENT_BACK = "it went back"
ABSENT = "it has not asked for a batch yet"
"""Reasons why a consumer is dropped that are not its pace; it goes back where it has not enough memory for a batch."""


@dataclass
class _Consumer:
    """A process that takes batches.

    Attributes:
        together: whether others wait for it; it was not dropped.
        requested: how many batches of the run lie before the one that it asked for last.
        validated: batches of validation that it asked for.
        given_s, used_s: when it got its last batch, and how long it took for the one before.
    """

    name: str
    together: bool = True
    requested: float = -math.inf
    validated: int = 0
    given_s: float = math.nan
    used_s: float = 0.0


@dataclass
class _Entry:
    """A batch that is being made, or is in its slot until all consumers in `waiting` have taken it."""

    waiting: set[str]
    slot: Slot | None = None
    layout: Layout | None = None
    readers: int = 0


@dataclass(eq=False)
class _Peer:
    """A connection: the batch that it waits for, since when, and the one that it copies."""

    pipe: Connection
    consumer: _Consumer | None = None
    requested: Job | None = None
    since_s: float = 0.0
    reading: Job | None = None


class StreamServer:
    """Gives the batches of a map-style dataset to several processes on this machine; each batch is made once.

    Worker processes make batches ahead of the consumers (see `Workers`), and a thread hands them out. A batch is let go
    of when every consumer has taken it. A consumer that is `window` batches ahead of the slowest waits. A consumer that
    leaves (its process ends, it closes its stream) is dropped. So is one for which others have waited `patience_s`: it
    gets its batches at its own pace from then on, and nobody waits for it.

    Args:
        stream: of a map-style dataset.
        consumers: their names. Nothing is handed out before all have asked for a batch, or were dropped.
        window: batches by which the fastest consumer may be ahead.
        patience_s: how long others wait for a slow consumer.
        on_dropped: called in the server's thread with a dropped consumer's name and the reason, for example to stop its
            run, which makes a checkpoint, and to resume it later.
        demand: chooses the number of worker processes.

    Attributes:
        dropped: the names of dropped consumers, and why.
        address: of the socket to which consumers connect.

    Raises:
        DataError: the stream can't be served.
    """

    def __init__(
        self,
        stream: Stream,
        consumers: Sequence[str],
        *,
        window: int = WINDOW,
        patience_s: float = PATIENCE_S,
        on_dropped: Callable[[str, str], None] | None = None,
        demand: Demand | None = None,
    ) -> None:
        sources = readable(stream)
        if sources is None:
            accepted = "a map-style dataset on the CPU, on Linux"
            raise DataError("can't be served to several processes", where=stream.name, accepted=accepted)
        self.stream, self.window, self.patience_s = stream, window, patience_s
        self.dropped: dict[str, str] = {}
        self.workers = Workers(sources, demand)
        self._sources, self._on_dropped = sources, on_dropped
        self._consumers = {name: _Consumer(name) for name in consumers}
        self._peers: list[_Peer] = []
        self._entries: dict[Job, _Entry] = {}
        self.address = self.workers.folder / "address"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.address))
        self._listener.listen()
        self._wake, self._woken = socket.socketpair()
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._relaxed = False
        self._thread = threading.Thread(target=self._serve, name="hfta_nb stream", daemon=True)
        self._thread.start()

    def consumer(self, name: str) -> Stream:
        """The stream for one consumer; it can be sent to its process, and be the data of a study there."""
        client = Client(self.address, name)
        parts: dict[str, Any] = {part: ServedSource(s, part, client) for part, s in self._sources.items()}
        return replace(self.stream, **parts)

    def leave(self, name: str) -> None:
        """Wait for this consumer no longer, whether or not it has ever asked for a batch."""
        self._do(lambda: self._drop(self._consumers[name], LEFT))

    def relax(self, on: bool) -> None:
        """Let no consumer wait for slower ones (True), as while they are paused, or wait again."""
        self._do(lambda: setattr(self, "_relaxed", on))

    def _do(self, action: Callable[[], None]) -> None:
        """Let the thread do something."""
        self._actions.put(action)
        with contextlib.suppress(OSError):  # it has ended
            self._wake.send(b"\1")

    def close(self) -> None:
        """End the worker processes and all connections."""
        with contextlib.suppress(OSError):  # it is closed already
            self._wake.send(b"\0")  # closing alone is not seen: worker processes have a copy
        self._thread.join()
        self._wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The thread.

    def _serve(self) -> None:
        try:
            while True:
                handles = [self._woken, self._listener, *(p.pipe for p in self._peers), *self.workers.handles]
                ready = set(wait(handles, self._look_s()))
                if self._woken in ready:
                    if b"\0" in self._woken.recv(4096):
                        return
                    while not self._actions.empty():
                        self._actions.get()()
                if self._listener in ready:
                    self._peers.append(_Peer(Connection(self._listener.accept()[0].detach())))
                for peer in [p for p in self._peers if p.pipe in ready]:
                    self._listen(peer)
                self.workers.receive(0)
                self._lose_patience()
                self._hand_out()
        finally:
            for peer in self._peers:
                peer.pipe.close()
            self._listener.close()
            self._woken.close()
            self.workers.close()

    def _listen(self, peer: _Peer) -> None:
        try:
            said = peer.pipe.recv()
        except (EOFError, OSError):
            self._left(peer)
            return
        if isinstance(said, Job):
            self._on_request(peer, said)
        elif said is None:
            self._taken(peer)
        elif said is False:
            self._left(peer)
        else:
            peer.consumer = self._consumers.setdefault(said, _Consumer(said, together=False))

    def _on_request(self, peer: _Peer, job: Job) -> None:
        consumer, now = peer.consumer, time.perf_counter()
        assert consumer is not None  # it says its name first
        peer.requested, peer.since_s = job, now
        if job.part == "training":
            length = self._sources[job.part].length(job.batch_size) or 0
            before, consumer.requested = consumer.requested, job.epoch * length + job.number + consumer.validated
            if consumer.requested < before:  # not to hold back the others until it is where it was
                self._drop(consumer, WENT_BACK)
        else:
            consumer.validated += 1
            consumer.requested += 1
        if not math.isnan(consumer.given_s):
            consumer.used_s = now - consumer.given_s

    def _taken(self, peer: _Peer) -> None:
        job, consumer = peer.reading, peer.consumer
        if job is None or consumer is None:
            return
        peer.reading, consumer.given_s = None, time.perf_counter()
        entry = self._entries[job]
        entry.readers -= 1
        entry.waiting.discard(consumer.name)
        self._tidy(job)

    def _left(self, peer: _Peer) -> None:
        """Its process has ended, or wants no more."""
        self._peers.remove(peer)
        peer.pipe.close()
        if peer.reading is not None:
            self._entries[peer.reading].readers -= 1
        if peer.consumer is not None and not any(p.consumer is peer.consumer for p in self._peers):
            self._drop(peer.consumer, LEFT)
            for job in list(self._entries):
                self._entries[job].waiting.discard(peer.consumer.name)
                self._tidy(job)

    def _tidy(self, job: Job) -> None:
        """Let go of a batch that nobody waits for."""
        entry = self._entries[job]
        if entry.waiting or entry.readers or any(p.requested == job for p in self._peers):
            return
        if entry.slot is not None:
            self.workers.release(entry.slot)
        else:
            self.workers.drop([job])
        del self._entries[job]

    # Back-pressure.

    @property
    def _slowest(self) -> float:
        """Where the consumer stands for whom the others wait."""
        return min((c.requested for c in self._consumers.values() if c.together), default=math.inf)

    def _held_back(self, peer: _Peer) -> bool:
        consumer = peer.consumer
        if consumer is None or not consumer.together or self._relaxed:
            return False
        return consumer.requested > self._slowest + self.window

    def _waiting(self) -> Iterator[_Peer]:
        """Who is held back for the sake of slower ones."""
        return (p for p in self._peers if p.requested is not None and self._held_back(p))

    def _look_s(self) -> float | None:
        """Seconds until somebody may have waited for too long."""
        since_s = min((p.since_s for p in self._waiting()), default=None)
        return None if since_s is None else max(0.0, since_s + self.patience_s - time.perf_counter())

    def _lose_patience(self) -> None:
        now = time.perf_counter()
        if any(now - p.since_s >= self.patience_s for p in self._waiting()):
            slowest = self._slowest
            for consumer in [c for c in self._consumers.values() if c.together and c.requested == slowest]:
                began = consumer.requested > -math.inf
                self._drop(consumer, f"others waited {self.patience_s:g} s for it" if began else ABSENT)

    def _drop(self, consumer: _Consumer, reason: str) -> None:
        if not consumer.together:
            return
        consumer.together = False
        self.dropped[consumer.name] = reason
        reading = {p.reading for p in self._peers if p.consumer is consumer}
        for job in [job for job in self._entries if job not in reading]:
            self._entries[job].waiting.discard(consumer.name)
            self._tidy(job)
        if self._on_dropped is not None:
            self._on_dropped(consumer.name, reason)

    # Batches.

    def _hand_out(self) -> None:
        """Give batches that are ready, and ask the workers for those that are wanted and for the next."""
        for peer in self._peers:
            if peer.requested is None or peer.consumer is None or self._held_back(peer):
                continue
            job, entry = peer.requested, self._wanted(peer.requested, peer.consumer)
            if entry.slot is None and self.workers.ready(job):
                try:
                    entry.slot, entry.layout = self.workers.held(job)
                except DataError as error:
                    self._report(job, error)
                    continue
            if entry.slot is not None:
                peer.requested, peer.reading = None, job
                entry.readers += 1
                with contextlib.suppress(OSError):  # it has ended, which its connection tells next
                    peer.pipe.send((str(entry.slot.path), entry.layout))

    def _wanted(self, job: Job, consumer: _Consumer) -> _Entry:
        entry = self._entries.get(job) or self._begin(job, consumer)
        entry.waiting.add(consumer.name)
        length = self._sources[job.part].length(job.batch_size) or 0
        for number in range(job.number + 1, min(length, job.number + self.workers.ahead)):
            following = replace(job, number=number)
            if following not in self._entries:
                self._begin(following, consumer)
        return entry

    def _begin(self, job: Job, consumer: _Consumer) -> _Entry:
        together = [c for c in self._consumers.values() if c.together]
        used_s = max((c.used_s for c in together), default=0.0)
        if used_s:
            self.workers.demand.used(used_s)
        behind = {c.name for c in together if c.requested <= consumer.requested}
        self._entries[job] = _Entry(behind if consumer.together else {consumer.name})
        self.workers.submit(job)
        return self._entries[job]

    def _report(self, job: Job, error: DataError) -> None:
        """Give everybody who asks for a batch the reason why there is none."""
        del self._entries[job]
        for peer in [p for p in self._peers if p.requested == job]:
            peer.requested = None
            with contextlib.suppress(OSError):
                peer.pipe.send(error)
