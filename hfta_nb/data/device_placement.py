"""Where data is kept during a run: on the device if it fits, else in main memory."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor

from hfta_nb.data.samples import Data, Samples, leaves, tree_map
from hfta_nb.data.streams import AnyData

SHARE_OF_DEVICE = 0.5
"""The share of the device's free memory that data may take; the rest is for the members."""


@dataclass(frozen=True)
class Placement:
    """Where data is kept, and why.

    Attributes:
        resident: whether all of it is on the device, in the members' dtype.
        bytes: additional device memory that this takes.
        free_bytes: free memory of the device.
    """

    resident: bool
    bytes: int
    free_bytes: int

    def __str__(self) -> str:
        sizes = f"{_shown(self.bytes)} of {_shown(self.free_bytes)} free"
        return f"on the device ({sizes})" if self.resident else f"read ahead from main memory ({sizes})"


def placement(data: AnyData, device: torch.device, dtype: torch.dtype) -> Placement:
    """Where the data of a run is kept. Streams, and data that takes more than half of the device's free memory, are not
    resident.

    Args:
        data: of the run.
        device, dtype: of the members.
    """
    free = free_bytes(device)
    if not isinstance(data, Data):
        return Placement(False, 0, free)
    needed = sum(_bytes_there(t, device, dtype) for t in _tensors(data))
    return Placement(needed <= SHARE_OF_DEVICE * free, needed, free)


def placed(data: AnyData, device: torch.device, dtype: torch.dtype) -> AnyData:
    """The data as a run holds it: moved to the device if it fits, else unchanged, to be read ahead batch by batch."""
    if placement(data, device, dtype).resident or not isinstance(data, Data):
        return data.to(device, dtype)
    standard = None if data.standard is None else (data.standard[0].to(device), data.standard[1].to(device))
    return replace(data, standard=standard)


def is_resident(data: Data, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether all of it is on the device, in the members' dtype."""
    return all(_is_there(t, device, dtype) for t in _tensors(data))


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, torch's cache included."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def gathered(x: Samples, y: Samples, rows: Iterable[Tensor], pinned: bool) -> Generator[tuple[Samples, Samples]]:
    """Batches of samples in main memory, each gathered separately.

    Args:
        x, y: all samples ``[N, ...]``.
        rows: sample numbers of each batch: ``[n]``, or ``[M, n]``.
        pinned: whether to use pinned memory, from which a GPU copies asynchronously.
    """
    for part in rows:
        batch = [tree_map(functools.partial(_rows, rows=part, pinned=pinned), samples) for samples in (x, y)]
        yield batch[0], batch[1]


def _rows(tensor: Tensor, rows: Tensor, pinned: bool) -> Tensor:
    made = torch.empty((*rows.shape, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=pinned)
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
        torch.index_select(tensor, 0, rows.flatten(), out=made.view(-1, *tensor.shape[1:]))
    else:
        # NumPy gathers on one thread; torch would start a second thread pool beside that of the training step.
        np.take(tensor.numpy(), rows.numpy(), axis=0, out=made.numpy(), mode="clip")
    return made


def _tensors(data: Data) -> list[Tensor]:
    return [t for part in data.parts for t in leaves(getattr(data, part))]


def _is_there(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> bool:
    same = tensor.device.type == device.type and device.index in (None, tensor.device.index)
    return same and (tensor.dtype == dtype or not tensor.is_floating_point())


def _bytes_there(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> int:
    if _is_there(tensor, device, dtype):
        return 0
    return tensor.numel() * (dtype.itemsize if tensor.is_floating_point() else tensor.element_size())


def _shown(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
