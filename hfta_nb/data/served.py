"""The consumer's end of a stream that several processes share: see `StreamServer`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hfta_nb.data.samples import Samples, batches_in
from hfta_nb.data.shared_slots import Slot
from hfta_nb.data.sources import DatasetSource, Source
from hfta_nb.data.workers import Job
from hfta_nb.errors import DataError


class StreamEndedError(DataError):
    """The server of a stream has ended; its consumers can read streams of their own."""


class Client:
    """A process's connection to a server; made when the first batch is asked for. It can be sent to a process.

    Args:
        address: the server's socket.
        consumer: the name under which batches are taken.
    """

    def __init__(self, address: Path, consumer: str) -> None:
        self.address, self.consumer = address, consumer
        self._pipe: Connection | None = None
        self._slots: dict[str, Slot] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "consumer": self.consumer, "_pipe": None, "_slots": {}}

    def batch(self, job: Job) -> tuple[Samples, Samples]:
        """A batch; waits for it.

        Raises:
            DataError: it can't be made.
            StreamEndedError: the server has ended.
        """
        try:
            pipe = self._connected()
            pipe.send(job)
            answer = pipe.recv()
            if isinstance(answer, Exception):
                raise answer
            path, layout = answer
            found = self._slots.setdefault(path, Slot(Path(path))).read(layout)
            pipe.send(None)  # taken
        except (EOFError, OSError) as error:
            self.close()
            what = f"the server of the stream has ended ({type(error).__name__})"
            raise StreamEndedError(what, where=self.consumer, remedy="resume the run") from error
        return found

    def close(self) -> None:
        """Take no more batches: nobody waits for this consumer any longer."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.send(False)  # processes that were forked meanwhile keep the connection open
            pipe.close()

    def _connected(self) -> Connection:
        if self._pipe is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
                made.connect(str(self.address))
                self._pipe = Connection(made.detach())
            self._pipe.send(self.consumer)
        return self._pipe


class ServedSource(Source):
    """A map-style dataset that a server reads; its batches are those that `DatasetSource` gives.

    Args:
        source: the dataset, of which this keeps the size only.
        part: its name on the server.
        client: the connection.
    """

    takes_batch_size = True

    def __init__(self, source: DatasetSource, part: str, client: Client) -> None:
        self.part, self.client = part, client
        self.name = source.name
        self._samples, self.drop_last = source.samples or 0, source.drop_last

    @property
    def samples(self) -> int:
        return self._samples

    def length(self, batch_size: int) -> int:
        return batches_in(self._samples, batch_size, self.drop_last)

    def batches(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0
    ) -> Generator[tuple[Samples, Samples], None, None]:
        """See `Source.batches`."""
        for number in range(skip, self.length(batch_size)):
            yield self.client.batch(Job(self.part, batch_size, seed, epoch, number))
