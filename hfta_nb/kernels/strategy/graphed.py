"""Timing kernels on a GPU as they will run: within a CUDA graph, where the host's part in a call does not count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from hfta_nb.kernels import cuda_graphs

Run = Callable[[int], Any]
"""Does something so many times."""

_WARM_UP = 3


def graphed(run: Run, device: torch.device) -> Run:
    """The same as a CUDA graph of doing it once; itself where that can't be captured, or is no GPU's.

    Source: "CUDA Graphs" in torch's notes on CUDA semantics.
    """
    if device.type != "cuda" or cuda_graphs.refused():
        return run
    current, side = torch.cuda.current_stream(device), _side(device.index or 0)
    graph: Any = torch.cuda.CUDAGraph()
    try:
        side.wait_stream(current)
        with torch.cuda.stream(side):
            run(_WARM_UP)
        side.synchronize()
        with cuda_graphs.captured(graph, device, side):
            run(1)
        current.wait_stream(side)
    except RuntimeError:
        return run

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return replay


@cache
def _side(index: int) -> Any:
    """Always the same stream: cuBLAS keeps a workspace for each that it has seen, tens of megabytes on new GPUs."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
