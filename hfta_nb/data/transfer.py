"""Copies batches from main memory to the device while it still computes the previous step."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.samples import Samples, leaves, moved, tree_map


@dataclass(frozen=True)
class InFlight:
    """A batch that is on the device or on its way.

    Attributes:
        arrived: on a GPU the event of the copy; None if the batch is already there.
    """

    x: Samples
    y: Samples
    arrived: Any = None

    def taken(self) -> tuple[Samples, Samples]:
        """`x` and `y`. The device's current stream waits for them; the host does not."""
        if self.arrived is not None:
            tensors = [*leaves(self.x), *leaves(self.y)]
            current = torch.cuda.current_stream(tensors[0].device)
            current.wait_event(self.arrived)
            for tensor in tensors:  # its memory was allocated on another stream
                tensor.record_stream(current)
        return self.x, self.y


class DeviceTransfer:
    """Copies batches, on a GPU on a separate stream.

    Args:
        device, dtype: of the members; floating-point tensors arrive in the dtype.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if device.type == "cuda" and device.index is None:  # a thread needs the device's number
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.dtype = device, dtype
        self._side: Any = _side(device.index) if device.type == "cuda" else None

    def send(self, x: Samples, y: Samples) -> InFlight:
        """Send one batch; the host does not wait for the copy."""
        if self._side is None:
            return InFlight(tree_map(self._own, x), tree_map(self._own, y))
        if any(t.device.type == "cuda" for t in (*leaves(x), *leaves(y))):
            # Made by the person's own code, on the stream that is current here: nothing to overlap with. Where it is
            # taken, another thread's or a person's own stream may be current.
            there = [moved(part, self.device, self.dtype) for part in (x, y)]
            return InFlight(there[0], there[1], torch.cuda.current_stream(self.device).record_event())
        with torch.cuda.stream(self._side):
            there = [tree_map(self._copied, part) for part in (x, y)]
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._side)
        return InFlight(there[0], there[1], arrived)

    def sent(self, batches: Generator[tuple[Samples, Samples]], here: bool = True) -> Generator[InFlight]:
        """Send each of some batches.

        Args:
            batches: the iterator, which is closed at the end.
            here: False in a separate thread, whose current GPU is then set.
        """
        if not here and self._side is not None:
            torch.cuda.set_device(self.device)  # of this thread alone
        with contextlib.closing(batches):
            for x, y in batches:
                yield self.send(x, y)

    def _own(self, tensor: Tensor) -> Tensor:
        # A copy always: a loader may give the same tensors again, and a model or a loss may write into them.
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

    def _copied(self, tensor: Tensor) -> Tensor:
        # Pinned memory is not used again by torch's allocator until the copies from it are done.
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        there = pinned.to(self.device, non_blocking=True)
        return there.to(self.dtype) if there.is_floating_point() else there


@cache
def _side(index: int | None) -> Any:
    """Always the same stream: torch has 32 and then begins anew, and no two uses are to meet on one."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
