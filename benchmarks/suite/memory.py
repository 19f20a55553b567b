"""Peak memory of a mode: growth of this process on a CPU, what torch's allocator held on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

import psutil
import torch


class Peak:
    """The most memory between `begin` and `bytes`, over what was held when this was made.

    On Linux the system keeps the most that a process held, and forgets it when asked to; elsewhere what is held at the
    end counts, which leaves out what a step held and gave back. What earlier modes gave back to the allocator but not
    to the system is used again unseen, so that the growth is a little too small for later ones.
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
        """Forget the most so far."""
        if self.where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.where)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        """The most since then, over what was there before; never below 0."""
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
