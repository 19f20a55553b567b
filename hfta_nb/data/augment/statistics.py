"""Statistics of the training images: their range, and the mean and standard deviation of each channel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from hfta_nb.data import AnyData, Data, Reading

CHUNK = 4096
"""Images that are converted to float64 at a time."""

SAMPLED = 4096
"""Images that are read if the data is a stream."""


class Statistics:
    """Of the training images, between 0 and 1 where they are kept as bytes; each figure is computed when first used.

    Args:
        data: with images ``[N, channels, H, W]``; of a stream the first `SAMPLED` of a pass are looked at.
        device: of the members.
    """

    def __init__(self, data: AnyData, device: torch.device) -> None:
        self.data, self.device = data, device

    @functools.cached_property
    def range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest value, ``[]`` each: of bytes 0 and 1, whichever occur."""
        x = self._images
        if not x.is_floating_point():
            return torch.zeros((), device=self.device), torch.ones((), device=self.device)
        return x.min().to(self.device), x.max().to(self.device)

    @functools.cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``[channels]``, float64; the deviation of a channel that never changes is given as 1."""
        x = self._images
        count = x.numel() // x.shape[1]
        mean = sum((part.sum((0, 2, 3)) for part in _parts(x)), start=x.new_zeros(x.shape[1], dtype=torch.float64))
        mean = mean / count
        square = torch.zeros_like(mean)
        for part in _parts(x):
            square += ((part - mean.view(-1, 1, 1)) ** 2).sum((0, 2, 3))
        deviation = (square / count).sqrt()
        return mean.to(self.device), torch.where(deviation > 0, deviation, 1.0).to(self.device)

    @functools.cached_property
    def _images(self) -> Tensor:
        if isinstance(self.data, Data):
            return self.data.x  # type: ignore[no-any-return]
        found: list[Tensor] = []
        if self.data.kept is not None:
            return self.data.kept.x  # type: ignore[no-any-return]
        reader = Reading(self.data.held).items(self.data.training.batches(CHUNK // 16, 0, 0))
        with contextlib.closing(reader):
            for x, _ in reader:
                found.append(x)
                if sum(map(len, found)) >= SAMPLED:
                    break
        return torch.cat(found).to(self.device)


def _parts(images: Tensor) -> Iterator[Tensor]:
    for part in torch.split(images, CHUNK):
        yield part.double() if part.is_floating_point() else part.double() / 255
