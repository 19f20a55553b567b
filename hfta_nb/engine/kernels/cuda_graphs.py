"""CUDA graphs, with one memory pool for all graphs of an array.

If the end of a capture fails, torch before 2.12 leaves the capture open: `torch.cuda.empty_cache` raises, memory used
on several streams is never reused, later captures fail, and registered generators refuse the next eager draw. The error
of the end also hides the error that caused it. `captured` leaves the process usable for eager work.

Source: "CUDA Graphs" in torch's notes on CUDA semantics (warm-up on a side stream, memory of the graph's own,
generators registered with the graph); `at::cuda::CUDAGraph::capture_end` and
`CUDACachingAllocator::endAllocateToPool` of torch.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.capture import Part, Run, message_of
from hfta_nb.engine.members.generators import MemberGenerators

MOST_SHARE = 0.8
"""The share of a GPU's memory that the graphs of an array may take; calls that are not captured need the rest."""

_WARM_UP = 3
"""Runs of a kernel before it is captured for timing."""

_Pool = Any


class CudaGraphs:
    """Captures work on a GPU as CUDA graphs in one memory pool.

    Graphs of one pool reuse the memory of each other's intermediate values. Therefore they run one after another, as
    all work of an array does.

    Args:
        device: the GPU.
        generators: of the members, which draw within graphs as well; None if nothing draws.
    """

    generators: Any

    def __init__(self, device: torch.device, generators: MemberGenerators | None = None) -> None:
        self.device, self.generators = device, generators
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._pool: _Pool = None
        self._bytes = 0

    def refused(self) -> str:
        return refused()

    def apart(self) -> CudaGraphs:
        return CudaGraphs(self.device, self.generators)

    def warm(self, run: Run) -> Any:
        """See `Backend`. CuBLAS takes a workspace with the first product on a stream, which must not come from the
        memory of a graph, as it outlives the graph."""
        current, side = torch.cuda.current_stream(self.device), side_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            results = run()
        current.wait_stream(side)
        for tensor in _tensors(results):
            tensor.record_stream(current)
        return results

    def launching(self, run: Run) -> float:
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        self.warm(run)
        launched = time.perf_counter() - begin
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begin) / launched

    def capture(self, part: Part) -> CudaGraph:
        """See `Backend`.

        Raises:
            RuntimeError: it can't be captured, or the pool takes more than `MOST_SHARE` of the GPU's memory.
        """
        if not self._graphs:  # torch gives a pool up with its last graph
            self._pool, self._bytes = torch.cuda.graph_pool_handle(), 0
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        if self.generators is not None:  # the graph's memory comes from the device, not from torch's cache
            torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self.device)
        within = captured(graph, self.device, side_stream(self.device), self._pool)
        # A replay sets the seed and the offset of each registered generator, by a kernel each.
        with self.generators.captured(graph) if part.draws else nullcontext() as streams, within:
            results = part.run()
        found = CudaGraph(graph, results, self.generators, streams)
        self._graphs.add(found)
        self._bytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        total = torch.cuda.mem_get_info(self.device)[1]
        if self._bytes > MOST_SHARE * total:
            raise RuntimeError(f"graphs would take {self._bytes / 2**30:.1f} of {total / 2**30:.1f} GiB")
        return found


class CudaGraph:
    """Work captured as a CUDA graph.

    Args:
        graph: what was captured.
        results: where it leaves its results.
        generators: of the members.
        streams: the members' generators that it draws from; None if it draws nothing.
    """

    def __init__(
        self, graph: Any, results: Any, generators: MemberGenerators, streams: Sequence[torch.Generator] | None
    ) -> None:
        self.replay: Callable[[], Any] = graph.replay
        self._results, self._generators, self._streams = results, generators, streams

    def is_valid(self) -> bool:
        return self._streams is None or self._generators.own is self._streams

    def run(self) -> Any:
        self.replay()
        if isinstance(self._results, dict):
            return {name: value.clone() for name, value in self._results.items()}
        return [value.clone() for value in self._results]


def _tensors(results: Any) -> list[Tensor]:
    values = results.values() if isinstance(results, dict) else results if isinstance(results, list) else ()
    return [value for value in values if isinstance(value, Tensor)]


def graphed(run: Callable[[int], Any], device: torch.device) -> Callable[[int], Any]:
    """Repeats a kernel within a CUDA graph, where the host's overhead of a call does not count.

    Args:
        run: runs the kernel the given number of times.
        device: of the kernel.

    Returns:
        The same by a graph of one run; `run` itself if it cannot be captured or the device is no GPU.
    """
    if device.type != "cuda" or refused():
        return run
    graphs = CudaGraphs(device)
    try:
        graphs.warm(lambda: run(_WARM_UP))
        graph = graphs.capture(Part(lambda: run(1), draws=False))
    except RuntimeError:
        return run

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return replay


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
    new GPUs, and torch has 32 streams and then begins anew."""
    return _stream(device.index or 0)


@cache
def _stream(index: int) -> Any:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


@contextmanager
def captured(graph: Any, device: torch.device, stream: Any, pool: _Pool = None) -> Iterator[None]:
    """Capture work on a GPU within the context.

    Args:
        graph: a `torch.cuda.CUDAGraph` whose capture has not begun.
        device: the GPU.
        stream: a stream other than the default one; it is the current stream within the context.
        pool: the handle of the memory pool; None for a new one.

    Raises:
        RuntimeError: an earlier capture has made captures in this process impossible, or this one cannot be ended.
        BaseException: an error within the context; it takes precedence over a failure to end the capture.
    """
    if refused():
        raise RuntimeError(refused())
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
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
    _Process.trouble = message_of(cause)
    default = torch.cuda.default_generators[index]
    fresh = torch.Generator(device)  # its state does not refer to the capture
    fresh.set_state(default.get_state())
    default.graphsafe_set_state(fresh)
