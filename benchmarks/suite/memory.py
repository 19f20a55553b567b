"""Peak memory of a mode: growth of this process on a CPU, memory held by torch's allocator on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

import psutil
import torch


class Peak:
    """The peak memory between `begin` and `bytes`, above that at construction.

    On Linux the system records the peak of a process and can reset it. Elsewhere the memory at the end counts, which
    omits memory that a step has freed. Memory that earlier modes have returned to the allocator but not to the system
    is reused without growth, so that later values are slightly too small.
    """

    def __init__(self, where: torch.device) -> None:
        self.where = where
        gc.collect()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
            self.before = torch.cuda.memory_allocated(where)
        else:
            with contextlib.suppress(OSError, AttributeError):  # glibc only
                ctypes.CDLL("libc.so.6").malloc_trim(0)
            self.before = psutil.Process().memory_info().rss

    def begin(self) -> None:
        """Reset the peak."""
        if self.where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.where)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        """The peak since then, above the memory before; never below 0."""
        if self.where.type == "cuda":
            most = torch.cuda.max_memory_allocated(self.where)
        else:
            most = _most() or psutil.Process().memory_info().rss
        return max(0, most - self.before)


def _most() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
