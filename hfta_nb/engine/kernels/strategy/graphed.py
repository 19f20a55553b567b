"""Times GPU kernels within a CUDA graph, where the host's overhead of a call does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hfta_nb.engine.kernels import cuda_graphs

Run = Callable[[int], Any]
"""Runs a function the given number of times."""

_WARM_UP = 3


def graphed(run: Run, device: torch.device) -> Run:
    """A CUDA graph of one run; the function itself if it cannot be captured or the device is no GPU.

    Source: "CUDA Graphs" in torch's notes on CUDA semantics.
    """
    if device.type != "cuda" or cuda_graphs.refused():
        return run
    current, side = torch.cuda.current_stream(device), cuda_graphs.side_stream(device)
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
