"""One stream of batches for several arrays: each batch is read once, and let go of when all of them have taken it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from hfta_nb.data import Cached, Samples, Stream, preprocessed, tree_map, versions
from hfta_nb.data.augment import Augmenting
from hfta_nb.train.batches import AsRead, Batch, Batches, Streamed

WINDOW = 4
"""The most batches that are kept for arrays that are behind. An array further behind reads the stream again."""


@dataclass
class _Kept:
    """A batch that some arrays have yet to take."""

    batch: Batch
    version: tuple[int, ...]
    waiting: set[int] = field(default_factory=set)


class _Line:
    """The batches of a pass in order, for several consumers.

    Args:
        begin: begins to read a pass: from its number and the first batch's.

    Attributes:
        consumers: numbers of those who take batches.
        copying: whether each gets a copy, for a consumer's model writes into its input.
    """

    def __init__(self, begin: Callable[[int, int], Iterator[Batch]]) -> None:
        self.consumers: set[int] = set()
        self.copying = False
        self._begin = begin
        self._reader: Iterator[Batch] | None = None
        self._next = (-1, 0)  # the pass and number of the batch that the reader gives next
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._end = (-1, 0)  # a pass, and its batches

    def take(self, consumer: int, pass_: int, number: int) -> Batch | None:
        """A batch; None after the last of its pass."""
        key = (pass_, number)
        kept = self._kept.get(key)
        if kept is not None and versions(kept.batch.x, kept.batch.y) != kept.version:
            self.copying, kept = True, None
        if kept is None:
            kept = self._read(key)
            if kept is None:
                return None
        kept.waiting.discard(consumer)
        if not kept.waiting:
            self._kept.pop(key, None)
        return _copied(kept.batch) if self.copying else kept.batch

    def leave(self, consumer: int) -> None:
        """A consumer takes no more batches."""
        self.consumers.discard(consumer)
        for key, kept in list(self._kept.items()):
            kept.waiting.discard(consumer)
            if not kept.waiting:
                del self._kept[key]

    def _read(self, key: tuple[int, int]) -> _Kept | None:
        if self._end[0] == key[0] and key[1] >= self._end[1]:
            return None
        if self._reader is None or self._next != key:
            self._reader = self._begin(*key)
        batch = next(self._reader, None)
        if batch is None:
            self._reader, self._end = None, key
            return None
        self._next = (key[0], key[1] + 1)
        kept = _Kept(batch, versions(batch.x, batch.y), set(self.consumers))
        self._kept.pop(key, None)
        self._kept[key] = kept
        while len(self._kept) > WINDOW:
            del self._kept[next(iter(self._kept))]
        return kept


class BatchBuffer:
    """The batches of a stream for arrays that take turns.

    What all of them have in common is done once per batch: reading, which worker processes do where the stream allows,
    the copy to the device, conversion to floats, and augmentation with the same values of its axes. Batches, their
    order and their random numbers are those of a stream of one's own.

    Args:
        data: the stream; what is read from it does not depend on what was read before.
        batch_size: N.
        device, dtype: of the members.
        seed: of the order of the data.
        evaluated: see `Batches`.

    Attributes:
        augmenting: what prepares batches for members that augment.
        cached: what was computed of the latest batch.
        workers: processes that read the stream; None without any.
    """

    def __init__(
        self,
        data: Stream,
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        evaluated: int | None = None,
    ) -> None:
        stream, self.workers = preprocessed(data)
        self._source = Streamed(stream, batch_size, device, dtype)
        self._source.prepare, self._source.evaluated = AsRead(), evaluated
        self.about = data, batch_size, device, dtype
        self.cached = Cached()
        self.augmenting = Augmenting(data, device, dtype)
        self.augmenting.cached = self.cached
        self.training = _Line(lambda pass_, number: self._source.epoch(pass_, number, [seed]))
        self.validation = _Line(lambda _, number: itertools.islice(self._source.validation(), number, None))
        self._numbers = itertools.count()

    @property
    def length(self) -> int | None:
        """Mini-batches in a pass; None while that is not known."""
        return self._source.length

    def join(self) -> int:
        """A number for another consumer."""
        number = next(self._numbers)
        self.training.consumers.add(number)
        self.validation.consumers.add(number)
        return number

    def leave(self, consumer: int) -> None:
        """A consumer is done; nothing waits for it any longer."""
        self.training.leave(consumer)
        self.validation.leave(consumer)

    def close(self) -> None:
        """Let go of the stream, and end its workers."""
        self._source.close()
        if self.workers is not None:
            self.workers.close()


class SharedBatches(Batches):
    """The batches of one of the arrays that take turns.

    Args:
        buffer: where all of them get their batches.
    """

    def __init__(self, buffer: BatchBuffer) -> None:
        super().__init__(*buffer.about)
        self._buffer, self._consumer = buffer, buffer.join()

    @property
    def length(self) -> int | None:
        return self._buffer.length

    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        for number, read in enumerate(self._waited_for(self._taken(self._buffer.training, epoch, start)), start):
            yield self._made(read.x, read.y, read.size, False, epoch, number)

    def validation(self) -> Iterator[Batch]:
        for read in self._taken(self._buffer.validation, 0, 0):
            yield self._held_out(read.x, read.y)

    def close(self) -> None:
        self._buffer.leave(self._consumer)

    def _taken(self, line: _Line, pass_: int, start: int) -> Iterator[Batch]:
        for number in itertools.count(start):
            batch = line.take(self._consumer, pass_, number)
            if batch is None:
                return
            yield batch

    def _floats(self, x: Samples) -> Samples:
        (found,) = self._buffer.cached(x, "floats", lambda: (super(SharedBatches, self)._floats(x),))
        return found


def _copied(batch: Batch) -> Batch:
    return Batch(tree_map(torch.clone, batch.x), tree_map(torch.clone, batch.y), batch.size, batch.own)
