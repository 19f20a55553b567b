"""Sources of batches that can be iterated repeatedly: tensors, a `Dataset`, a `DataLoader`, a function.

The random numbers of torch, NumPy and Python are seeded for each pass, so that a repeated pass (of a member alone, or
after an interruption) gives the same batches. Generators that the user's objects hold go on as in the user's loop: see
`held`.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import inspect
import itertools
import operator
import traceback
import types
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, IterableDataset, StackDataset, Subset

from hfta_nb.data.items import batch_of, samples_at, stacked
from hfta_nb.data.order import order
from hfta_nb.data.randomness import Randomness
from hfta_nb.data.samples import Samples, batches_in, count, take
from hfta_nb.errors import DataError, HftaError


class Source(ABC):
    """Batches of training or validation samples.

    Attributes:
        name: for errors.
        batch_size: its own batch size; None to use the run's.
        endless: whether a pass that has begun is known to have no end; False if unknown.
        takes_batch_size: whether it uses the run's batch size.
        drop_last: whether it leaves out the last batch of a pass if that is not full; of a source that takes the run's
            batch size.
        tells: whether samplers and data sets that have `set_epoch` are told the number of each pass, as for training.
    """

    name = "data"
    batch_size: int | None = None
    endless = False
    takes_batch_size = False
    drop_last = False
    tells = True

    @property
    @abstractmethod
    def samples(self) -> int | None:
        """The number of samples, if known."""

    @abstractmethod
    def length(self, batch_size: int) -> int | None:
        """Batches in a pass, if known."""

    @abstractmethod
    def batches(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0
    ) -> Generator[tuple[Samples, Samples], None, None]:
        """A pass.

        Args:
            batch_size: batch size if the source has none of its own.
            seed, epoch: determine its random numbers.
            skip: the first batches, which are dropped.

        Raises:
            DataError: an item is not a batch, or reading fails.
        """

    def _notify(self, epoch: int, *holders: Any) -> None:
        """Call `set_epoch` of samplers and data sets, and of those within torch's wrappers of data sets."""
        notified: list[Any] = []
        for holder in holders if self.tells else ():
            tell = getattr(holder, "set_epoch", None)
            if callable(tell) and not any(holder is one for one in notified):
                tell(epoch)
                notified.append(holder)
            elif isinstance(holder, Subset):
                self._notify(epoch, holder.dataset)
            elif isinstance(holder, ConcatDataset | StackDataset | ChainDataset):
                parts = holder.datasets
                self._notify(epoch, *(parts.values() if isinstance(parts, dict) else parts))

    @contextlib.contextmanager
    def _notifying(self, epoch: int, number: int) -> Iterator[None]:
        """Add the position in the data to errors of the reading code."""
        try:
            yield
        except (HftaError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            first_line = next(iter(str(error).splitlines()), "")
            what = (
                f"reading failed with {type(error).__name__}: {first_line} ({Path(last.filename).name}:{last.lineno})"
            )
            raise DataError(what, where=f"{self.name}, pass {epoch + 1}, batch {number}") from error


class InOrder(Source):
    """Batches that are read one after another; the random numbers of a pass are seeded at its beginning."""

    @abstractmethod
    def _begin(self, batch_size: int, seed: int, epoch: int) -> Iterator[Any]:
        """Begin a pass: raw batches, before splitting."""

    def batches(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0
    ) -> Generator[tuple[Samples, Samples], None, None]:
        """See `Source.batches`. Skipped batches are read."""
        drawn = Randomness(zlib.crc32(f"{seed}/{epoch}".encode()))
        with self._notifying(epoch, 0), drawn.drawn():
            reader = self._begin(batch_size, seed, epoch)
            self.endless = self.endless or never_ends(reader)
        try:
            number = 0
            while True:
                with self._notifying(epoch, number), drawn.drawn():
                    item = next(reader, _END)
                if item is _END:
                    return
                if number >= skip:
                    yield batch_of(item, f"{self.name}, pass {epoch + 1}, batch {number}")
                number += 1
        finally:
            _end(reader)


_END = object()


def never_ends(reader: Any) -> bool:
    """Whether an iterator is known to have no end: one of `itertools`, or a generator without exit.

    A generator is inspected without running it: if its code has no return (``while True: yield ...`` without break), it
    never ends. For most other iterators this is unknown.
    """
    if isinstance(reader, types.GeneratorType):
        names = {instruction.opname for instruction in dis.get_instructions(reader.gi_code)}
        return not any(name.startswith("RETURN_") for name in names - {"RETURN_GENERATOR"})
    if isinstance(reader, itertools.repeat):
        return operator.length_hint(reader, -1) < 0  # the default count, without an end
    return isinstance(reader, itertools.count | itertools.cycle)


def _end(reader: Iterator[Any]) -> None:
    """Close an iterator's generator or worker processes."""
    close = getattr(reader, "close", None) or getattr(reader, "_shutdown_workers", None)
    if callable(close):
        close()


class TensorSource(InOrder):
    """Slices of tensors, in order."""

    takes_batch_size = True

    def __init__(self, x: Samples, y: Samples) -> None:
        self.x, self.y = x, y

    @property
    def samples(self) -> int:
        return count(self.x)

    def length(self, batch_size: int) -> int:
        return -(-self.samples // batch_size)

    def _begin(self, batch_size: int, seed: int, epoch: int) -> Iterator[Any]:
        for start in range(0, self.samples, batch_size):
            part = slice(start, start + batch_size)
            yield take(self.x, part), take(self.y, part)


class DatasetSource(InOrder):
    """A map-style dataset by index, or an iterable dataset in its order.

    The random numbers of a map-style dataset are seeded for each batch, so that batches can be made in any order and
    by any process.

    Args:
        dataset: with ``[i]`` and ``len()``, or an `IterableDataset`.
        shuffle: use the order of data in memory; False for the order of the dataset.
    """

    takes_batch_size = True

    def __init__(self, dataset: Any, shuffle: bool) -> None:
        self.dataset, self.shuffle = dataset, shuffle
        self.iterable = isinstance(dataset, IterableDataset)
        self._rows: tuple[tuple[int, int, int], Sequence[int]] | None = None  # of the latest pass

    @property
    def samples(self) -> int | None:
        return None if self.iterable else len(self.dataset)

    def length(self, batch_size: int) -> int | None:
        return None if self.samples is None else batches_in(self.samples, batch_size, self.drop_last)

    def dropping_last(self) -> DatasetSource:
        """The same source, without the last batch of a pass where it is not full."""
        found = copy.copy(self)
        found.drop_last = True
        return found

    def batches(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0
    ) -> Generator[tuple[Samples, Samples], None, None]:
        """See `Source.batches`. Skipped batches of a map-style dataset are not read."""
        if self.iterable:
            yield from super().batches(batch_size, seed, epoch, skip)
            return
        with self._notifying(epoch, skip), Randomness(zlib.crc32(f"{seed}/{epoch}".encode())).drawn():
            self._notify(epoch, self.dataset)
        number = skip
        while number < (self.length(batch_size) or 0):
            yield self.batch(batch_size, seed, epoch, number)
            number += 1

    def batch(self, batch_size: int, seed: int, epoch: int, number: int) -> tuple[Samples, Samples]:
        """One batch of a map-style dataset; its order and random numbers depend on the arguments alone.

        Args:
            batch_size: size of a batch.
            seed, epoch: of the pass.
            number: of the batch in the pass, from 0.

        Raises:
            DataError: samples can't be read or stacked.
        """
        drawn = Randomness(zlib.crc32(f"{seed}/{epoch}/{number}".encode()))
        with self._notifying(epoch, number), drawn.drawn():
            rows = self._order(seed, epoch)[number * batch_size : (number + 1) * batch_size]
            item = stacked(samples_at(self.dataset, rows))
        return batch_of(item, f"{self.name}, pass {epoch + 1}, batch {number}")

    def _order(self, seed: int, epoch: int) -> Sequence[int]:
        total = len(self.dataset)
        if not self.shuffle:
            return range(total)
        key = (total, seed, epoch)
        if self._rows is None or self._rows[0] != key:
            self._rows = key, order(total, seed, epoch).tolist()
        return self._rows[1]

    def _begin(self, batch_size: int, seed: int, epoch: int) -> Iterator[Any]:
        """Begin a pass of an iterable dataset."""
        self._notify(epoch, self.dataset)
        reader = iter(self.dataset)
        self.endless = self.endless or never_ends(reader)
        while items := [item for _, item in zip(range(batch_size), reader, strict=False)]:
            if self.drop_last and len(items) < batch_size:
                return
            yield stacked(items)


class LoaderSource(InOrder):
    """A `DataLoader`, with its own batches, order, workers and collate function."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        self.endless = never_ends(loader.sampler) or never_ends(loader.batch_sampler)

    @property
    def samples(self) -> int | None:
        if isinstance(self.loader.dataset, IterableDataset):
            return None
        try:
            return len(self.loader.sampler) if self.loader.batch_size else len(self.loader.dataset)  # type: ignore[arg-type]
        except TypeError:
            return None

    def length(self, batch_size: int) -> int | None:
        if isinstance(self.loader.dataset, IterableDataset):  # the length of an iterable dataset is unreliable
            return None
        try:
            return len(self.loader)
        except TypeError:
            return None

    def _begin(self, batch_size: int, seed: int, epoch: int) -> Iterator[Any]:
        batches = self.loader.batch_sampler
        self._notify(epoch, self.loader.sampler, batches, getattr(batches, "sampler", None), self.loader.dataset)
        # Workers that live on would draw on from where the last pass left them, so each pass has its own.
        fresh = getattr(self.loader, "_get_iterator", None) if self.loader.persistent_workers else None
        reader = fresh() if fresh else iter(self.loader)
        # Of an `IterableDataset` that is read in this process; workers make their iterators elsewhere.
        read = getattr(getattr(reader, "_dataset_fetcher", None), "dataset_iter", None)
        self.endless = self.endless or never_ends(read)
        return reader


class FunctionSource(InOrder):
    """A function that yields the batches of a pass; it gets the number of the pass (from 0) if it takes an argument."""

    def __init__(self, function: Callable[..., Iterable[Any]]) -> None:
        self.function = function
        self.takes_epoch = _takes_one(function)

    @property
    def samples(self) -> None:
        return None

    def length(self, batch_size: int) -> None:
        return None

    def _begin(self, batch_size: int, seed: int, epoch: int) -> Iterator[Any]:
        given = self.function(epoch) if self.takes_epoch else self.function()
        try:
            return iter(given)
        except TypeError:
            raise DataError(
                "did not return batches", where=self.name, got=given, accepted="an iterator of batches (x, y)"
            ) from None


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in callables have none
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    if len(required) > 1:
        names = ", ".join(p.name for p in required)
        raise DataError(
            "takes more than the number of the pass",
            where=getattr(function, "__name__", "data"),
            got=names,
            accepted="a function of nothing, or of one number",
        )
    return bool(required) or any(p.name == "epoch" for p in places[:1])
