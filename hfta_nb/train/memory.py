"""Measures memory: the peak of a piece of work, what is free on the device, and how many members fit.

On a GPU torch's caching allocator records the peak. On a CPU a `Meter` counts the storages that torch's operators
return, from creation until the last tensor over them is freed. It does not see temporary memory inside a kernel, nor
memory of NumPy or a data loader; `MARGIN` leaves room for these.
"""

from __future__ import annotations

import functools
import gc
import math
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MARGIN = {"cuda": 0.1, "cpu": 0.2}
"""The share of free memory that is not used: for fragmentation on a GPU, for other programs on a CPU."""

_CGROUP = Path("/sys/fs/cgroup")


RECORDING = 3
"""Times the peak of a step that recording it takes, with the programs that are compared; measured up to 2.2."""


def can_record(device: torch.device, peak_bytes: int, free: int) -> bool:
    """Whether a step with this peak may be recorded.

    On a GPU always: if memory runs out, the step runs unrecorded. On a CPU running out of memory ends the process.
    """
    return device.type != "cpu" or RECORDING * peak_bytes <= free


@dataclass(frozen=True)
class MemoryModel:
    """Memory of training as a linear function of the number of members.

    Attributes:
        fixed_bytes: independent of the number of members, for example a mini-batch.
        member_bytes: of each member: parameters, gradients, optimizer state, best weights, activations.
    """

    fixed_bytes: int
    member_bytes: int

    @classmethod
    def of_points(cls, members: int, peak_bytes: int, more: int, more_bytes: int) -> MemoryModel:
        """The line through the peaks of two numbers of members, the smaller first."""
        slope = max(1, -(-(more_bytes - peak_bytes) // (more - members)))
        return cls(max(0, peak_bytes - members * slope), slope)

    def bytes(self, members: int) -> int:
        """What an array of so many members takes."""
        return self.fixed_bytes + members * self.member_bytes

    def capacity(self, free_bytes: int) -> int:
        """How many members fit; 0 if not even one does."""
        return max(0, (free_bytes - self.fixed_bytes) // self.member_bytes)

    def corrected(self, members: int, peak_bytes: int) -> MemoryModel:
        """The same model with `member_bytes` from a measurement of an array of this size."""
        return MemoryModel(self.fixed_bytes, max(1, math.ceil((peak_bytes - self.fixed_bytes) / members)))


class Meter:
    """A context that measures memory. It may be entered again, and then continues. Meters can't be nested.

    Args:
        device: whose memory.

    Example:
        >>> meter = Meter(torch.device("cpu"))
        >>> with meter:
        ...     kept = torch.zeros(1000)
        ...     passing = torch.zeros(1000); del passing
        >>> meter.held_bytes, meter.peak_bytes
        (4000, 8000)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._counter = _Counter() if device.type != "cuda" else None
        self._before, self._most = 0, 0
        if device.type == "cuda":
            gc.collect()  # what is freed within would count as negative, and arrays have reference cycles
            _workspaces(device)
            torch.cuda.synchronize(device)
            self._before = torch.cuda.memory_allocated(device)

    def see(self) -> None:
        """Bring `peak_bytes` up to now, while within."""
        if self._counter is None:
            self._most = max(self._most, torch.cuda.max_memory_allocated(self.device) - self._before)

    def __enter__(self) -> Meter:
        if self._counter is not None:
            self._counter.__enter__()  # type: ignore[no-untyped-call]
        else:
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._counter is not None:
            self._counter.__exit__(*error)  # type: ignore[no-untyped-call]
        self.see()

    @property
    def held_bytes(self) -> int:
        """Bytes allocated within the context that are still held."""
        if self._counter is not None:
            return self._counter.held
        return max(0, torch.cuda.memory_allocated(self.device) - self._before)

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes held at once within the context."""
        return self._most if self._counter is None else self._counter.most


@functools.cache
def _workspaces(device: torch.device) -> None:
    """Let cuBLAS take its workspaces, tens of megabytes with a thread's first products: they are no member's."""
    with torch.enable_grad():
        x = torch.ones(8, 8, device=device, requires_grad=True)
        torch.addmm(x[0], x, x).sum().backward()  # type: ignore[no-untyped-call]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages; it sees kernels, those of a backward included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held, self.most = 0, 0
        self._alive: dict[int, tuple[Any, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler here, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _gives_what_it_got(func):
            self._see(result)
        return result

    def _see(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._count(value)
        elif isinstance(value, list | tuple):
            for part in value:
                self._see(part)

    def _count(self, tensor: Tensor) -> None:
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._alive.get(key)
        if known is not None and known[0]() is storage:
            return
        size = storage.nbytes()
        self._alive[key] = weakref.ref(storage, lambda gone: self._forget(key, gone)), size
        self.held += size
        self.most = max(self.most, self.held)

    def _forget(self, key: int, gone: Any) -> None:
        known = self._alive.get(key)
        if known is not None and known[0] is gone:
            del self._alive[key]
            self.held -= known[1]


@functools.cache
def _gives_what_it_got(func: Any) -> bool:
    """Whether an operator returns its arguments or views of them, so that no memory is new."""
    return any(r.alias_info is not None for r in func._schema.returns)


def free_bytes(device: torch.device) -> int:
    """The memory that training may still use: free memory less a margin.

    On a GPU what torch holds in its cache counts as free, but for memory of CUDA graphs, which only they use; on a CPU
    a container's limit counts as well.
    """
    share = 1 - MARGIN["cuda" if device.type == "cuda" else "cpu"]
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(share * (free + cached - _of_graphs(device)))
    free = int(psutil.virtual_memory().available)
    limit = _left_in_container(_CGROUP)
    return int(share * (free if limit is None else min(free, limit)))


def _of_graphs(device: torch.device) -> int:
    """Bytes in the private pools of CUDA graphs that are not allocated now, but are whenever a graph runs."""
    index = torch.cuda.current_device() if device.index is None else device.index
    every = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    segments = [s for s in every if s["device"] == index]
    return sum(s["total_size"] - s["allocated_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


def _left_in_container(root: Path) -> int | None:
    """What a container may still take (cgroup version 2, else 1); None where it has no limit."""
    for most, now, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (root / most).read_text(encoding="utf-8").strip()
            used = int((root / now).read_text(encoding="utf-8"))
            lines = (root / now).parent.joinpath("memory.stat").read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        if not limit.isdecimal() or int(limit) >= 1 << 60:  # "max", or version 1's way to say so
            return None
        # Files that are kept because there was room make way; the system counts them as used.
        kept = next((int(line.split()[1]) for line in lines if line.startswith(cache + " ")), 0)
        return max(0, int(limit) - used + kept)
    return None


def release(device: torch.device) -> None:
    """Release cached memory after its owners are gone."""
    import gc

    gc.collect()  # an error's frames and the tensors in them are often a circle
    if device.type == "cuda":
        torch.cuda.empty_cache()


def shown(size: int) -> str:
    """A number of bytes as text: ``3.2 GiB``."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"
