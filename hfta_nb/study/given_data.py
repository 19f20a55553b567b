"""Data as it was handed over, read as a loop of one's own reads it: what `Study.check` trains on.

Nothing of how a run converts, keeps, draws and moves samples is used here, so that a fault there makes a difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from hfta_nb.data import AnyData, Data, Stream
from hfta_nb.data.items import batch_of, stacked
from hfta_nb.data.streams import is_map_style
from hfta_nb.data.tensors import split_rows

Batch = tuple[Any, Any]

VALIDATION_BATCH = 1024
"""Samples of data in memory that are validated at once."""

HELD_OUT = 0.2
"""The share that is held out where no validation data was given."""


def kept(data: Any) -> Any:
    """What of the data is kept for `GivenData`: tables are copied, and nothing is kept of data sets by name."""
    if isinstance(data, str | Data | Stream):
        return None
    return _each(lambda value: value.copy() if hasattr(value, "to_numpy") else value, data)


class GivenData:
    """The batches of what was handed over; images of bytes are scaled to values between 0 and 1.

    Args:
        handed: what `kept` gave; None for data that is `Data` or a `Stream` already.
        data: what the study has made of it.
        device, dtype: of the members.
    """

    def __init__(self, handed: Any, data: AnyData, device: torch.device, dtype: torch.dtype) -> None:
        self.data, self.device, self.dtype = data, device, dtype
        self._parts = self._read(handed)

    def training(self, batch_size: int, seed: int, pass_: int) -> Iterator[Batch]:
        """The batches of a pass through the training samples, from 0."""
        if isinstance(self.data, Stream):
            yield from map(self._moved, self.data.training.batches(batch_size, seed, pass_))
            return
        read, rows = self._parts[0]
        drawn = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{pass_}".encode()))
        order = [rows[i] for i in torch.randperm(len(rows), generator=drawn).tolist()]
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            if len(chosen) == batch_size or not self.data.drop_last:
                yield self._moved(read(chosen))

    def validation(self) -> Iterator[Batch]:
        """All validation samples."""
        if isinstance(self.data, Stream):
            yield from map(self._moved, self.data.validation.batches(VALIDATION_BATCH, 0, 0))
            return
        read, rows = self._parts[1]
        for start in range(0, len(rows), VALIDATION_BATCH):
            yield self._moved(read(rows[start : start + VALIDATION_BATCH]))

    def _read(self, handed: Any) -> list[tuple[Callable[[Sequence[int]], Batch], Sequence[int]]]:
        """For training and validation, what reads samples by their numbers, and all numbers."""
        data = self.data
        if isinstance(data, Stream):
            return []
        if handed is None:
            pairs: list[Any] = [(data.x, data.y), (data.x_validation, data.y_validation)]
            return [(_of_tensors(*pair), range(len(_first(pair[0])))) for pair in pairs]
        if is_map_style(handed):
            handed = (handed,)
        if is_map_style(handed[0]):
            readers = [_of_items(part) for part in handed if part is not None]
            counts = [len(part) for part in handed if part is not None]
        else:
            pairs = [handed[i : i + 2] for i in range(0, len(handed), 2) if handed[i] is not None]
            readers, counts = [_of_tensors(*pair) for pair in pairs], [len(_first(pair[0])) for pair in pairs]
        if len(readers) == 2:
            return [(read, range(count)) for read, count in zip(readers, counts, strict=True)]
        rows, aside = split_rows(counts[0], HELD_OUT)
        return [(readers[0], rows.tolist()), (readers[0], aside.tolist())]

    def _moved(self, batch: Batch) -> Batch:
        x, y = batch
        return _each(self._scaled, x), _each(self._placed, y)

    def standardised(self, x: Any) -> Any:
        """Inputs as a model gets them: built-in images of mean 0 and deviation 1."""
        if self.data.standard is None:
            return x
        mean, deviation = (v.to(x).view(-1, 1, 1) for v in self.data.standard)
        return (x - mean) / deviation

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype) if tensor.is_floating_point() else tensor.to(self.device)

    def _scaled(self, tensor: Tensor) -> Tensor:
        """Images of bytes between 0 and 1."""
        return tensor.to(self.device, self.dtype) / 255 if tensor.dtype == torch.uint8 else self._placed(tensor)


def _of_tensors(x: Any, y: Any) -> Callable[[Sequence[int]], Batch]:
    x, y = _each(_tensor, x), _each(_tensor, y)

    def read(rows: Sequence[int]) -> Batch:
        chosen = torch.tensor(rows)
        return _each(lambda t: t[chosen], x), _each(lambda t: t[chosen], y)

    return read


def _of_items(dataset: Any) -> Callable[[Sequence[int]], Batch]:
    def read(rows: Sequence[int]) -> Batch:
        items = [dataset[i] for i in rows]
        try:
            return batch_of(default_collate(items), "the data")
        except TypeError:  # images of Pillow, say
            return stacked(items)

    return read


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        found = value
    else:
        found = torch.as_tensor(np.array(value.to_numpy() if hasattr(value, "to_numpy") else value))
    numbers = found.is_floating_point() or found.is_complex() or found.dtype == torch.bool
    images = found.dtype == torch.uint8 and found.ndim == 4
    return found if numbers or images else found.long()


def _each(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _each(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        parts = [_each(function, value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree)


def _first(tree: Any) -> Any:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree
