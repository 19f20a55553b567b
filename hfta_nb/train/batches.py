"""The mini-batches of a group, pass by pass: which samples, in which order, for all members or for each its own."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from hfta_nb.data import (
    LONG_PASS,
    Ahead,
    Data,
    DeviceTransfer,
    Draw,
    InFlight,
    Samples,
    Stream,
    by_member,
    count,
    gathered,
    leaves,
    take,
    tree_map,
    warn_of_long_pass,
)
from hfta_nb.engine.array import per_member
from hfta_nb.engine.array.access import Featured
from hfta_nb.errors import DataError

Item = TypeVar("Item")

AT_ONCE_BYTES = 2**20
MOST_TOGETHER = 16
"""Batches are drawn together up to so many, or so many bytes."""

ALIGNED = 64
"""Bytes to a multiple of which torch begins a tensor on a CPU."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch.

    Attributes:
        x, y: inputs and targets, each tensor ``[N, ...]``, or ``[M, N, ...]`` where `own`.
        size: N.
        own: whether every member has samples of its own.
    """

    x: Samples
    y: Samples
    size: int
    own: bool = False

    @property
    def inputs(self) -> tuple[Any, Any]:
        """`x` and `y` as a step takes them."""
        return (tree_map(per_member, self.x), tree_map(per_member, self.y)) if self.own else (self.x, self.y)

    @property
    def first(self) -> tuple[Samples, Samples]:
        """What the first member sees, as the model alone takes it: without features."""
        x = self.x.inputs if isinstance(self.x, Featured) else self.x
        return (tree_map(_first, x), tree_map(_first, self.y)) if self.own else (x, self.y)


class Prepare(Protocol):
    """What is done to samples between data and model, in place of `Data.floats`."""

    def training(self, x: Samples, y: Samples, own: bool, epoch: int, number: int) -> tuple[Samples, Samples, bool]:
        """A training batch, the `number`-th of pass `epoch`; `own`, given and returned, as in `Batch`."""

    def validation(self, x: Samples, y: Samples, own: bool) -> tuple[Samples, Samples, bool]:
        """Likewise for a validation batch."""


class AsRead:
    """Leaves samples as they were read."""

    def training(self, x: Samples, y: Samples, own: bool, epoch: int, number: int) -> tuple[Samples, Samples, bool]:
        return x, y, own

    def validation(self, x: Samples, y: Samples, own: bool) -> tuple[Samples, Samples, bool]:
        return x, y, own


class Batches(ABC):
    """Mini-batches of a group, on the device of its members.

    Args:
        data: resident data on the device already, or read from the machine's memory, or a stream.
        batch_size: N.
        device, dtype: of the members.

    Attributes:
        prepare: what is done to samples; None for `Data.floats`.
        own: whether every member has training samples of its own where all see the same ones, too: they will not once
            others join them, and a step with samples per member is another one, which is recorded anew.
        draws: which samples of whole data are the members', one for all or one per member that still trains.
        evaluated: samples of validation that go through at once; None for as many as in training.
        waited_s: how long the host has waited for samples so far; what `prepare` does is not in it.
    """

    prepare: Prepare | None = None
    own: bool = False
    draws: Sequence[Draw] = (Draw(),)
    evaluated: int | None = None

    def __init__(self, data: Data | Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batch_size, self.device, self.dtype = batch_size, device, dtype
        self.waited_s = 0.0
        self._data = data
        self._open: Any = None  # what reads a pass; resident data has none

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Mini-batches in a pass; None while that is not known."""

    @abstractmethod
    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        """The batches of a pass through the training samples, from number `start` on.

        Args:
            epoch: which pass, from 0.
            start: the first batch, from 0.
            seeds: per member that still trains, of the order of its data.
            behind: per such member, how many passes later than the array it has begun; none without.
        """

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """All validation samples."""

    def state(self) -> dict[str, Any] | None:
        """Where reading is, as plain data and tensors; None where the numbers of the pass and the batch say it."""
        return None

    def load_state(self, state: Mapping[str, Any] | None) -> None:  # noqa: B027 - most have none
        """Go on from what `state` gave."""

    @property
    def _evaluated(self) -> int:
        return self.evaluated or self.batch_size

    def close(self) -> None:
        """Let go of what is held open: a loader's processes, a thread."""
        reader, self._open = self._open, None
        if reader is not None:
            reader.close()

    def _waited_for(self, reader: Iterator[Item]) -> Iterator[Item]:
        """What a reader gives, with the time that it takes counted."""
        while True:
            begin_s = time.perf_counter()
            item = next(reader, None)
            self.waited_s += time.perf_counter() - begin_s
            if item is None:
                return
            yield item

    def _made(self, x: Samples, y: Samples, size: int, own: bool, epoch: int, number: int) -> Batch:
        if self.prepare is None:
            return Batch(self._floats(x), y, size, own)
        x, y, own = self.prepare.training(x, y, own, epoch, number)
        return Batch(x, y, size, own)

    def _floats(self, x: Samples) -> Samples:
        """Inputs as a model gets them."""
        return self._data.floats(x, self.dtype)

    def _held_out(self, x: Samples, y: Samples, own: bool = False) -> Batch:
        size = leaves(y)[0].shape[int(own)]
        if self.prepare is None:
            return Batch(self._floats(x), y, size, own)
        x, y, own = self.prepare.validation(x, y, own)
        return Batch(x, y, size, own)


class Whole(Batches):
    """Of whole data; the last batch of a pass has what is left, or is left out (`Data.drop_last`)."""

    def __init__(self, data: Data, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self.data = data

    @property
    def length(self) -> int:
        return self.data.batches(self.batch_size, self.draws[0].fold)

    def _order(self, epoch: int, seeds: Sequence[int], behind: Sequence[int]) -> Tensor:
        """The order of the samples in a pass, ``[N]``, or ``[M, N]`` where members have samples of their own."""
        draws = self.draws if len(self.draws) == len(seeds) else [self.draws[0]] * len(seeds)
        keys = [(draw, s, epoch - late) for draw, s, late in zip(draws, seeds, behind or [0] * len(seeds), strict=True)]
        order = by_member(keys, lambda key: self.data.drawn(*key))
        if self.data.drop_last:
            order = order[..., : self.length * self.batch_size]
        return order.expand(len(seeds), -1) if self.own and len(seeds) > 1 and order.ndim == 1 else order

    def _held_out_rows(self) -> Tensor:
        """The validation samples, ``[N]``, or ``[M, N]`` where members have samples of their own."""
        return by_member([draw.fold for draw in self.draws], self.data.held_out_of)

    def _together(self, order: Tensor) -> int:
        """How many batches are drawn at once."""
        return 1 if order.ndim == 2 else together(self.data.x, self.data.y, self.batch_size, self.dtype)

    def _numbered(
        self, chunks: Iterator[tuple[Samples, Samples]], order: Tensor, epoch: int, start: int, several: int
    ) -> Iterator[Batch]:
        """The batches of a pass, from number `start` on, of samples drawn `several` batches at a time."""
        number, own = start, order.ndim == 2
        for chunk in chunks:
            for x, y in _apart(*chunk, several, self.batch_size):
                size = min(self.batch_size, order.shape[-1] - number * self.batch_size)
                yield self._made(x, y, size, own, epoch, number)
                number += 1


class Resident(Whole):
    """Of data that is wholly on the device."""

    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        order = self._order(epoch, seeds, behind)
        if self.device.type == "cuda":  # so that the host does not wait for the copy
            order = order.pin_memory()
        order = order.to(self.device, non_blocking=True)
        several = self._together(order)
        chunks = parts(order, self.batch_size, start, several)
        drawn = ((take(self.data.x, rows), take(self.data.y, rows)) for rows in chunks)
        yield from self._numbered(self._waited_for(drawn), order, epoch, start, several)

    def validation(self) -> Iterator[Batch]:
        order = self._held_out_rows().to(self.device)
        for rows in parts(order, self._evaluated, 0):  # copies: a model or a metric may write into what it is given
            x, y = (take(v, rows) for v in (self.data.x_validation, self.data.y_validation))
            yield self._held_out(x, y, order.ndim == 2)


class Hosted(Whole):
    """Of data that does not fit on the device: a thread puts batches together and sends them, some ahead of the step.

    The samples, their order and their numbers are those of `Resident`.
    """

    def __init__(self, data: Data, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self._transfer = DeviceTransfer(device, dtype)

    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        order = self._order(epoch, seeds, behind)
        several = self._together(order)
        self.close()
        self._open = self._begin(self.data.x, self.data.y, parts(order, self.batch_size, start, several))
        there = (sent.taken() for sent in self._waited_for(self._open))
        yield from self._numbered(there, order, epoch, start, several)

    def validation(self) -> Iterator[Batch]:
        order = self._held_out_rows()
        rows = parts(order, self._evaluated, 0)
        reader = self._begin(self.data.x_validation, self.data.y_validation, rows)
        with contextlib.closing(reader):  # the pass through the training samples stays open beside it
            for sent in reader:
                yield self._held_out(*sent.taken(), order.ndim == 2)

    def _begin(self, x: Samples, y: Samples, rows: Iterator[Tensor]) -> Ahead[InFlight]:
        batches = gathered(x, y, rows, pinned=self.device.type == "cuda")
        return Ahead(self._transfer.sent(batches, here=False))


class Streamed(Batches):
    """Of a stream, which all members see alike. On a GPU one batch is copied ahead of the step that needs it.

    It is read in this thread: what reads it may draw from the random streams that all threads have in common. A loader
    that is to read while a step computes has worker processes.
    """

    def __init__(self, data: Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self.data = data
        self._transfer = DeviceTransfer(device, dtype)
        self._length = data.batches(batch_size)
        self._at = (-1, 0)  # the pass that is open, and how many of its batches were given
        self._ended = False  # whether it was seen what a whole pass changes

    @property
    def length(self) -> int | None:
        return self._length

    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        """See `Batches`; all members begin together.

        Where the stream stands already it goes on, elsewhere it begins anew and skips.

        Raises:
            DataError: the pass gives no batch, or one that can't be used.
        """
        if self._open is None or self._at != (epoch, start):
            self.close()
            self._open = self._begin(epoch, start, seeds[0])
            self._at = (epoch, start)
        reader, number = self._open, start
        begin = None if start or self._ended or self.data.held.varies else self.data.held.look()
        for x, y in self._waited_for(reader):
            self._at = (epoch, number + 1)
            yield self._made(x, y, count(y), False, epoch, number)
            if self._open is not reader or self._at != (epoch, number + 1):
                return  # somebody began elsewhere meanwhile
            number += 1
        if not number:
            remedy = "a function must give fresh batches each time it is called"
            raise DataError("gave no batch", where=f"{self.data.name}, pass {epoch + 1}", remedy=remedy)
        self._length = number
        self._at = (epoch + 1, 0)
        self.close()
        if begin is not None:
            self._ended = True
            self.data.held.warn_of_changes(begin, self.data.name)

    def _begin(self, epoch: int, start: int, seed: int) -> Generator[tuple[Samples, Samples]]:
        return self._ahead(self.data.training.batches(self.batch_size, seed, epoch, skip=start))

    def _begin_validation(self) -> Generator[tuple[Samples, Samples]]:
        return self._ahead(self.data.validation.batches(self._evaluated, 0, 0))

    def validation(self) -> Iterator[Batch]:
        reader = self._begin_validation()
        given = 0
        try:
            for x, y in reader:
                given += 1
                if given == LONG_PASS and self.data.validation.length(self._evaluated) is None:
                    warn_of_long_pass(f"{self.data.name}, validation", "end it after some batches")
                yield self._held_out(x, y)
        finally:
            reader.close()
        if not given:
            raise DataError("gave no batch", where=f"{self.data.name}, validation")

    def _ahead(self, batches: Generator[tuple[Samples, Samples]]) -> Generator[tuple[Samples, Samples]]:
        """On the device; on a GPU while it still computes the step before."""
        with contextlib.closing(self._transfer.sent(batches)) as sent:
            if self.device.type != "cuda":
                for batch in sent:
                    yield batch.taken()
                return
            ready = next(sent, None)
            while ready is not None:
                now, ready = ready, next(sent, None)
                yield now.taken()


def parts(order: Tensor, batch_size: int, start: int, several: int = 1) -> Iterator[Tensor]:
    """The rows of each batch of a pass, from number `start` on; the last batch has what is left.

    Args:
        order: of all samples, ``[N]``, or ``[M, N]``.
        batch_size: of a batch.
        start: the first batch.
        several: so many batches at a time.
    """
    if start * batch_size < order.shape[-1]:
        yield from torch.split(order[..., start * batch_size :], several * batch_size, -1)


def together(x: Samples, y: Samples, batch_size: int, dtype: torch.dtype) -> int:
    """How many batches are drawn at once: small ones cost more in calls, and in going from thread to thread, than in
    copying. Each begins where memory of its own would: kernels may compute other bits where it does not."""
    tensors = [*leaves(x), *leaves(y)]
    widths = [dtype.itemsize if t.is_floating_point() else t.element_size() for t in tensors]
    sizes = [batch_size * t[:1].numel() * width for t, width in zip(tensors, widths, strict=True)]
    return max(1, min(MOST_TOGETHER, AT_ONCE_BYTES // sum(sizes))) if all(size % ALIGNED == 0 for size in sizes) else 1


def _apart(x: Samples, y: Samples, several: int, batch_size: int) -> Iterator[tuple[Samples, Samples]]:
    """The batches that were sent together."""
    if several == 1:
        yield x, y
        return
    for first in range(0, count(y), batch_size):
        part = slice(first, first + batch_size)
        yield take(x, part), take(y, part)


def _first(tensor: Tensor) -> Tensor:
    return tensor[0]
