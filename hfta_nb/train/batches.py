"""The mini-batches of a group, pass by pass: which samples, in which order, for all members or for each its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hfta_nb.array import per_member
from hfta_nb.data import Data, Samples, Stream, count, leaves, moved, orders, take, tree_map
from hfta_nb.errors import DataError

EVALUATION_BATCH = 1024
"""Validation samples of resident data that go through at once."""


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
        """What the first member sees."""
        return (tree_map(_first, self.x), tree_map(_first, self.y)) if self.own else (self.x, self.y)


class Prepare(Protocol):
    """What is done to samples between data and model, in place of `Data.floats`."""

    def training(self, x: Samples, y: Samples, own: bool, epoch: int, number: int) -> tuple[Samples, Samples, bool]:
        """A training batch, the `number`-th of pass `epoch`; `own`, given and returned, as in `Batch`."""

    def validation(self, x: Samples, y: Samples) -> tuple[Samples, Samples, bool]:
        """Likewise for a validation batch."""


class Batches(ABC):
    """Mini-batches of a group, on the device of its members.

    Args:
        data: resident data on the device already, or a stream.
        batch_size: N.
        device, dtype: of the members.

    Attributes:
        prepare: what is done to samples; None for `Data.floats`.
    """

    prepare: Prepare | None = None

    def __init__(self, data: Data | Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batch_size, self.device, self.dtype = batch_size, device, dtype
        self._data = data

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Mini-batches in a pass; None while that is not known."""

    @abstractmethod
    def epoch(self, epoch: int, start: int, seeds: Sequence[int]) -> Iterator[Batch]:
        """The batches of a pass through the training samples, from number `start` on.

        Args:
            epoch: which pass, from 0.
            start: the first batch, from 0.
            seeds: per member that still trains, of the order of its data.
        """

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """All validation samples."""

    def close(self) -> None:  # noqa: B027 - only a stream holds anything
        """Let go of what is held open."""

    def _made(self, x: Samples, y: Samples, size: int, own: bool, epoch: int, number: int) -> Batch:
        if self.prepare is None:
            return Batch(self._data.floats(x, self.dtype), y, size, own)
        x, y, own = self.prepare.training(x, y, own, epoch, number)
        return Batch(x, y, size, own)

    def _held_out(self, x: Samples, y: Samples) -> Batch:
        size = count(y)
        if self.prepare is None:
            return Batch(self._data.floats(x, self.dtype), y, size)
        x, y, own = self.prepare.validation(x, y)
        return Batch(x, y, size, own)


class Resident(Batches):
    """Of data that is wholly on the device; the last batch of a pass has what is left."""

    def __init__(self, data: Data, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self.data = data

    @property
    def length(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def epoch(self, epoch: int, start: int, seeds: Sequence[int]) -> Iterator[Batch]:
        order = orders(len(self.data), seeds, epoch).to(self.device)
        for number in range(start, self.length):
            rows = order[..., number * self.batch_size : (number + 1) * self.batch_size]
            x, y = take(self.data.x, rows), take(self.data.y, rows)
            yield self._made(x, y, rows.shape[-1], order.ndim == 2, epoch, number)

    def validation(self) -> Iterator[Batch]:
        for start in range(0, self.data.held_out, EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            yield self._held_out(take(self.data.x_validation, part), take(self.data.y_validation, part))


class Streamed(Batches):
    """Of a stream, which all members see alike. On a GPU one batch is copied ahead of the step that needs it."""

    def __init__(self, data: Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self.data = data
        self._length = data.batches(batch_size)
        self._at = (-1, 0)  # the pass that is open, and how many of its batches were given
        self._open: Generator[tuple[Samples, Samples]] | None = None

    @property
    def length(self) -> int | None:
        return self._length

    def epoch(self, epoch: int, start: int, seeds: Sequence[int]) -> Iterator[Batch]:
        """See `Batches`. Where the stream stands already it goes on, elsewhere it begins anew and skips.

        Raises:
            DataError: the pass gives no batch, or one that can't be used.
        """
        if self._open is None or self._at != (epoch, start):
            self.close()
            self._at = (epoch, start)
            self._open = self._ahead(self.data.training.batches(self.batch_size, seeds[0], epoch, skip=start))
        reader, number = self._open, start
        for x, y in reader:
            self._at = (epoch, number + 1)
            yield self._made(x, y, count(y), False, epoch, number)
            if self._open is not reader or self._at != (epoch, number + 1):
                return  # somebody began elsewhere meanwhile
            number += 1
        if not number:
            remedy = "a function must give fresh batches each time it is called"
            raise DataError("gave no batch", where=f"{self.data.name}, pass {epoch + 1}", remedy=remedy)
        self._length = number
        self.close()

    def validation(self) -> Iterator[Batch]:
        reader = self._ahead(self.data.validation.batches(EVALUATION_BATCH, 0, 0))
        given = 0
        try:
            for x, y in reader:
                given += 1
                yield self._held_out(x, y)
        finally:
            reader.close()
        if not given:
            raise DataError("gave no batch", where=f"{self.data.name}, validation")

    def close(self) -> None:
        reader, self._open = self._open, None
        if reader is not None:
            reader.close()

    def _ahead(self, batches: Generator[tuple[Samples, Samples]]) -> Generator[tuple[Samples, Samples]]:
        """On the device; on a GPU while it still computes the step before."""
        try:
            if self.device.type != "cuda":
                for x, y in batches:
                    yield moved(x, self.device, self.dtype), moved(y, self.device, self.dtype)
                return
            side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            ready = self._copied(batches, side)
            while ready is not None:
                pair, copied = ready
                ready = self._copied(batches, side)
                main = torch.cuda.current_stream(self.device)
                main.wait_event(copied)
                for tensor in (*leaves(pair[0]), *leaves(pair[1])):
                    tensor.record_stream(main)
                yield pair
        finally:
            batches.close()

    def _copied(self, batches: Iterator[Any], side: Any) -> tuple[tuple[Samples, Samples], Any] | None:
        """The next batch on its way to the GPU, and the event that says it has arrived."""
        pair = next(batches, None)
        if pair is None:
            return None
        sent = [tree_map(lambda t: _sent(t, self.device, self.dtype, side), part) for part in pair]
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(side)
        return (sent[0], sent[1]), arrived


def batches_of(data: Data | Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> Batches:
    """The mini-batches of any data; see `Batches`."""
    if isinstance(data, Stream):
        return Streamed(data, batch_size, device, dtype)
    return Resident(data, batch_size, device, dtype)


def _sent(tensor: Tensor, device: torch.device, dtype: torch.dtype, side: torch.cuda.Stream) -> Tensor:
    if tensor.device.type == "cuda":  # made by the person's own code, on the main stream
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)
    with torch.cuda.stream(side):
        # The host's allocator keeps pinned memory until copies from it are done.
        there = tensor.pin_memory().to(device, non_blocking=True)
        return there.to(dtype) if there.is_floating_point() else there


def _first(tensor: Tensor) -> Tensor:
    return tensor[0]
