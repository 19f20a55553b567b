"""Capturing CUDA graphs so that a capture that fails leaves the process fit for eager work.

Where the end of a capture fails, torch before 2.12 leaves the capture under way: `torch.cuda.empty_cache` raises,
memory used on several streams is never reused, later captures fail, and the generators that were registered refuse the
next eager draw. The error of the end also hides the one within that is its cause.

Source: `at::cuda::CUDAGraph::capture_end` and `CUDACachingAllocator::endAllocateToPool` of torch; "CUDA Graphs" in its
notes on CUDA semantics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_Pool = Any


class _Process:
    """What is known of captures in this process.

    Attributes:
        trouble: the cause of the first capture that torch did not recover from; empty where there was none.
    """

    trouble = ""


def refused() -> str:
    """Why nothing is captured in this process any more; empty where captures are possible."""
    cause = _Process.trouble
    return f"no more graphs in this process, as torch does not recover from a failed capture: {cause}" if cause else ""


def capturing(device: torch.device) -> bool:
    """Whether the work that is given to a device now is captured rather than done."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextmanager
def captured(graph: Any, device: torch.device, stream: Any) -> Iterator[None]:
    """Within, work on a GPU is captured rather than done.

    Args:
        graph: a `torch.cuda.CUDAGraph` that has not begun.
        device: the GPU.
        stream: not the default one; it is the current one within, and afterwards no longer.

    Raises:
        RuntimeError: an earlier capture has spoiled captures in this process, or this one can't be ended.
        BaseException: what was raised within; a failure to end the capture then goes unmentioned.
    """
    if refused():
        raise RuntimeError(refused())
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        try:
            # Other threads (a loader's) may go on using the device meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except Exception as error:
            _clean(device, pool, error)
            raise
        try:
            yield
        except BaseException as error:
            try:
                graph.capture_end()
            except Exception:  # its cause is the error at hand
                _clean(device, pool, error)
            raise
        try:
            graph.capture_end()
        except Exception as error:
            _clean(device, pool, error)
            raise


def _clean(device: torch.device, pool: _Pool, cause: BaseException) -> None:
    """End a capture that could not be ended, where torch has not done so."""
    index = device.index or 0
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # it is not under way: torch has cleaned up
        return
    with suppress(RuntimeError):
        torch._C._cuda_releasePool(index, pool)
    _Process.trouble = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    default = torch.cuda.default_generators[index]
    fresh = torch.Generator(device)  # whose state knows of no capture
    fresh.set_state(default.get_state())
    default.graphsafe_set_state(fresh)
