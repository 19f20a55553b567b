"""Data as it was handed over, read as a loop of one's own reads it: what `Study.check` trains on.

Of tensors, arrays and tables nothing of how a run converts, keeps, draws and moves samples is used here, so that a
fault there makes a difference. Streams are read as a run reads them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.data import Data, Stream
from hfta_nb.data.items import native
from hfta_nb.data.judging import is_map_style
from hfta_nb.data.tensors import split_rows
from hfta_nb.train import Settings
from hfta_nb.train.batches import AsRead, Batches
from hfta_nb.train.consecutive import batches_of

Pair = tuple[Any, Any]
"""Inputs and targets of a batch."""

HELD_OUT = 0.2
"""The share that is held out where no validation data was given."""


def kept(data: Any) -> Any:
    """What of the data is kept for `GivenData`: tables are copied, and nothing is kept of data sets by name."""
    if isinstance(data, str | Data | Stream):
        return None
    return _each(lambda value: value.copy() if hasattr(value, "to_numpy") else value, data)


class GivenData:
    """The batches of what was handed over; images of bytes are scaled to values between 0 and 1.

    A stream, and a data set that was read into memory, are read as a run reads streams: batch by batch, from the
    beginning.

    Args:
        handed: what `kept` gave; None for data that is `Data` or a `Stream` already.
        settings: of the study.
        row: the member's values of all training axes.
        seed: of the order of the samples.
    """

    def __init__(self, handed: Any, settings: Settings, row: Mapping[str, Any], seed: int) -> None:
        self.data, self.device, self.dtype = settings.data, settings.device, settings.dtype
        self.batch_size, self.seed = int(row["batch_size"]), seed
        self.balanced = row.get("sampling") == "balanced"
        self.validated = settings.validation_batch_size or self.batch_size
        self._stream: Batches | None = None
        if isinstance(self.data, Stream):
            self._stream = batches_of(self.data, self.batch_size, self.device, self.dtype)
            self._stream.prepare, self._stream.evaluated = AsRead(), settings.validation_batch_size
        else:
            self._parts = _tensors(handed, self.data, row.get("fold"))

    def training(self, pass_: int) -> Iterator[Pair]:
        """The batches of a pass through the training samples, from 0."""
        if self._stream is not None:
            yield from (self._moved(batch.x, batch.y) for batch in self._stream.epoch(pass_, 0, [self.seed]))
            return
        x, y, rows = self._parts[0]
        drawn = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{pass_}".encode()))
        if self.balanced:
            labels = y[rows] if y.ndim == 1 else y[rows].argmax(1)
            shares = 1 / torch.bincount(labels[labels >= 0]).double()
            weights = torch.where(labels >= 0, shares[labels.clamp(min=0)], 0)
            mixed = torch.multinomial(weights, len(rows), replacement=True, generator=drawn)
        else:
            mixed = torch.randperm(len(rows), generator=drawn)
        for chosen in torch.split(rows[mixed], self.batch_size):
            if len(chosen) == self.batch_size or not self.data.drop_last:  # type: ignore[union-attr]
                yield self._moved(_rows(x, chosen), _rows(y, chosen))

    def validation(self) -> Iterator[Pair]:
        """All validation samples."""
        if self._stream is not None:
            yield from (self._moved(batch.x, batch.y) for batch in self._stream.validation())
            return
        x, y, rows = self._parts[1]
        for chosen in torch.split(rows, self.validated):
            yield self._moved(_rows(x, chosen), _rows(y, chosen))

    def close(self) -> None:
        """Let go of what a stream holds open."""
        if self._stream is not None:
            self._stream.close()

    def _moved(self, x: Any, y: Any) -> Pair:
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


def _tensors(handed: Any, data: Data, fold: int | None) -> list[tuple[Any, Any, Tensor]]:
    """Inputs, targets and the numbers of the samples for training, and for validation."""
    if not isinstance(handed, tuple) or is_map_style(handed[0]):
        pairs = [(data.x, data.y), (data.x_validation, data.y_validation)]
    else:
        parts = [_each(_tensor, part) for part in handed if part is not None]
        if len(parts) == 2 and fold is None:
            x, y = parts
            return [(x, y, rows) for rows in split_rows(len(_first(x)), HELD_OUT)]
        pairs = [(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    if fold is not None:
        return [(*pairs[0], rows) for rows in (data.folds[fold].training, data.folds[fold].held_out)]
    return [(x, y, torch.arange(len(_first(x)))) for x, y in pairs]


def _rows(tree: Any, rows: Tensor) -> Any:
    return _each(lambda tensor: tensor[rows], tree)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        found = value
    else:
        found = torch.as_tensor(np.array(native(value.to_numpy() if hasattr(value, "to_numpy") else value)))
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
