"""One stream for the actors of several nodes: a `StreamServer` in an actor, batches through Ray's object store."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.data import Stream, StreamEndedError, StreamServer, serving
from hfta_nb.data.samples import Samples
from hfta_nb.data.served import Client, ServedSource
from hfta_nb.data.workers import Job, readable
from hfta_nb.errors import DataError
from hfta_nb.workers.processes import pickling


class RayServer:
    """Gives the batches of a map-style dataset to actors on any node; each batch is made once. See `StreamServer`.

    The actor asks for no CPU of the cluster, so that a cluster whose CPUs all train has one.

    Args:
        stream: of a map-style dataset.
        consumers: their names.
        on_dropped: called with a dropped consumer's name and the reason, on a thread.

    Raises:
        DataError: the stream can't be served.
    """

    def __init__(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> None:
        import ray

        sources = readable(stream)
        if sources is None:
            accepted = "a map-style dataset on the CPU, on Linux"
            raise DataError("can't be served to several actors", where=stream.name, accepted=accepted)
        self._stream, self._sources = stream, sources
        made = ray.remote(StreamActor).options(num_cpus=0, max_concurrency=4 + 2 * len(consumers))
        self.actor = made.remote(pickling.packed(stream), list(consumers), serving.PATIENCE_S)
        threading.Thread(target=_listen, args=(self.actor, on_dropped), name="hfta_nb stream", daemon=True).start()

    def consumer(self, name: str) -> Stream:
        """See `StreamServer.consumer`."""
        client: Any = _RayClient(self.actor, name)
        parts: dict[str, Any] = {part: ServedSource(s, part, client) for part, s in self._sources.items()}
        return replace(self._stream, **parts)

    def leave(self, name: str) -> None:
        """See `StreamServer.leave`."""
        self.actor.leave.remote(name)

    def relax(self, on: bool) -> None:
        """See `StreamServer.relax`."""
        self.actor.relax.remote(on)

    def close(self) -> None:
        """End the actor; its worker processes end with it."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # it is gone already, or the cluster
            ray.kill(self.actor)


class _RayClient:
    """A consumer's end, in the place of a `Client`: asks the actor.

    Args:
        actor: the handle of the server's actor.
        consumer: the name under which batches are taken.
    """

    def __init__(self, actor: Any, consumer: str) -> None:
        self.actor, self.consumer = actor, consumer

    def batch(self, job: Job) -> tuple[Samples, Samples]:
        """See `Client.batch`."""
        import ray

        try:
            found: tuple[Samples, Samples] = ray.get(self.actor.batch.remote(self.consumer, job))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # the source's own
        except ray.exceptions.RayError as error:
            what = f"the actor of the stream has ended ({type(error).__name__})"
            raise StreamEndedError(what, where=self.consumer, remedy="resume the run") from error
        return found


class StreamActor:
    """What runs in a process of the cluster: a server, and a connection to it for each consumer.

    Args:
        stream: of a map-style dataset, pickled.
        consumers, patience_s: see `StreamServer`.
    """

    def __init__(self, stream: bytes, consumers: Sequence[str], patience_s: float) -> None:
        self._drops: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        dropped = self._drops.put
        self._server = StreamServer(
            pickling.unpacked(stream), consumers, on_dropped=lambda *report: dropped(report), patience_s=patience_s
        )
        self._clients = {name: Client(self._server.address, name) for name in consumers}

    def batch(self, name: str, job: Job) -> tuple[Samples, Samples]:
        """See `Client.batch`; on a thread of the consumer's own."""
        return self._clients[name].batch(job)

    def leave(self, name: str) -> None:
        """See `StreamServer.leave`."""
        self._server.leave(name)

    def relax(self, on: bool) -> None:
        """See `StreamServer.relax`."""
        self._server.relax(on)

    def next_drop(self) -> tuple[str, str]:
        """The next consumer that is dropped, and why; waits for it."""
        return self._drops.get()


def _listen(actor: Any, on_dropped: Callable[[str, str], None]) -> None:
    """Pass on who is dropped, until the actor ends."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):
        while True:
            on_dropped(*ray.get(actor.next_drop.remote()))
