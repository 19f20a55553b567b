"""Capture of CUDA graphs that leaves the process usable for eager work if it fails.

If the end of a capture fails, torch before 2.12 leaves the capture open: `torch.cuda.empty_cache` raises, memory used
on several streams is never reused, later captures fail, and registered generators refuse the next eager draw. The error
of the end also hides the error that caused it.

Source: `at::cuda::CUDAGraph::capture_end` and `CUDACachingAllocator::endAllocateToPool` of torch; "CUDA Graphs" in its
notes on CUDA semantics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

_Pool = Any


class _Process:
    """State of captures in this process.

    Attributes:
        trouble: the cause of the first capture that torch did not recover from; empty if there was none.
    """

    trouble = ""


def refused() -> str:
    """Why captures are impossible in this process; empty if they are possible."""
    cause = _Process.trouble
    return f"no more graphs in this process, as torch does not recover from a failed capture: {cause}" if cause else ""


def capturing(device: torch.device) -> bool:
    """True if work on this device is currently captured instead of run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def side_stream(device: torch.device) -> Any:
    """A stream for captures, always the same for a device: cuBLAS keeps a workspace per stream, tens of megabytes on
    new GPUs."""
    return _stream(device.index or 0)


@cache
def _stream(index: int) -> Any:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


@contextmanager
def captured(graph: Any, device: torch.device, stream: Any) -> Iterator[None]:
    """Capture work on a GPU within the context.

    Args:
        graph: a `torch.cuda.CUDAGraph` whose capture has not begun.
        device: the GPU.
        stream: a stream other than the default one; it is the current stream within the context.

    Raises:
        RuntimeError: an earlier capture has made captures in this process impossible, or this one cannot be ended.
        BaseException: an error within the context; it takes precedence over a failure to end the capture.
    """
    if refused():
        raise RuntimeError(refused())
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        try:
            # Other threads (a loader's) may use the device meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except Exception as error:
            _clean(device, pool, error)
            raise
        try:
            yield
        except BaseException as error:
            try:
                graph.capture_end()
            except Exception:  # caused by the error above
                _clean(device, pool, error)
            raise
        try:
            graph.capture_end()
        except Exception as error:
            _clean(device, pool, error)
            raise


def _clean(device: torch.device, pool: _Pool, cause: BaseException) -> None:
    """End a capture that torch has left open."""
    index = device.index or 0
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # it is not open: torch has cleaned up
        return
    with suppress(RuntimeError):
        torch._C._cuda_releasePool(index, pool)
    _Process.trouble = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    default = torch.cuda.default_generators[index]
    fresh = torch.Generator(device)  # its state does not refer to the capture
    fresh.set_state(default.get_state())
    default.graphsafe_set_state(fresh)
