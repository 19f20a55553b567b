"""A stream whose batches are made by worker processes, ahead of the step that needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from hfta_nb.data.demand import Demand
from hfta_nb.data.samples import Samples
from hfta_nb.data.sources import DatasetSource, Source
from hfta_nb.data.streams import Stream
from hfta_nb.data.workers import Job, Workers, readable


class PreprocessedSource(Source):
    """A map-style dataset, read by workers; its batches are those that `DatasetSource` gives.

    Args:
        source: the dataset.
        part: its name among the workers' sources.
        workers: who read it.
    """

    takes_batch_size = True

    def __init__(self, source: DatasetSource, part: str, workers: Workers) -> None:
        self.source, self.part, self.workers = source, part, workers
        self.name = source.name

    @property
    def samples(self) -> int | None:
        return self.source.samples

    def length(self, batch_size: int) -> int | None:
        return self.source.length(batch_size)

    def batches(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0
    ) -> Generator[tuple[Samples, Samples], None, None]:
        """See `Source.batches`."""
        length = self.length(batch_size) or 0
        jobs = (Job(self.part, batch_size, seed, epoch, number) for number in range(skip, length))
        requested: deque[Job] = deque()
        try:
            self._ask(jobs, requested)
            while requested:
                batch = self.workers.take(requested.popleft())
                self._ask(jobs, requested)
                yield batch
        finally:
            self.workers.drop(requested)

    def _ask(self, jobs: Iterator[Job], requested: deque[Job]) -> None:
        while len(requested) < self.workers.ahead and (job := next(jobs, None)) is not None:
            requested.append(job)
            self.workers.submit(job)


def preprocessed(stream: Stream, demand: Demand | None = None) -> tuple[Stream, Workers | None]:
    """The same stream, read by worker processes where that can be.

    It can for map-style data sets. A `DataLoader` has workers of its own if it is asked to; functions and iterable data
    sets give their batches in one order, and so are read in this process.

    Args:
        stream: the stream.
        demand: chooses the number of processes.

    Returns:
        The stream, and its workers, which are to be closed; None without any.
    """
    found = readable(stream)
    if found is None:
        return stream, None
    workers = Workers(found, demand)
    read: dict[str, Any] = {name: PreprocessedSource(source, name, workers) for name, source in found.items()}
    return replace(stream, **read), workers
