"""Training steps as CUDA graphs.

Source: "CUDA Graphs" in torch's notes on CUDA semantics: warm-up on a side stream, memory of the graph's own,
generators registered with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray, MemberGenerators
from hfta_nb.engine.array.inspect import strictly
from hfta_nb.engine.kernels import cuda_graphs
from hfta_nb.train.step.graph import StepGraph
from hfta_nb.train.step.step_protocol import Scores


class CudaGraphs:
    """Captures steps on a GPU.

    Args:
        generators: of the members, which draw within a graph as well.
    """

    def __init__(self, generators: MemberGenerators) -> None:
        self.generators, self.device = generators, generators.device

    def refuses(self, leaves: Sequence[Any]) -> str:
        tensors = [v for v in leaves if isinstance(v, Tensor)]
        away = next((v.device for v in tensors if v.device != self.device), None)
        return cuda_graphs.refused() if away is None else f"an input is on {away}"

    def warm(self, action: Callable[[], Scores]) -> Scores:
        current, side = torch.cuda.current_stream(self.device), self._side()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            scores = action()
        current.wait_stream(side)
        for value in scores.values():
            value.record_stream(current)
        return scores

    def capture(self, action: Callable[[], Scores], draws: bool = True) -> CapturedGraph:
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the graph's memory comes from the device, not from torch's cache
        within = cuda_graphs.captured(graph, self.device, self._side())
        # A replay sets the seed and the offset of each registered generator, by a kernel each.
        with self.generators.captured(graph) if draws else nullcontext() as streams, within:
            scores = action()
        return CapturedGraph(graph, scores, self.generators, streams)

    def _side(self) -> Any:
        return _stream(self.device.index or 0)


def graph_of(array: FusedArray, state: Callable[[], Mapping[str, Tensor]]) -> StepGraph | None:
    """What captures an array's steps; None where there is nothing to be had from that, as on a CPU.

    Args:
        state: all tensors that a step changes, by name, but for the random streams.
    """
    if array.generators.device.type != "cuda":
        return None
    return StepGraph(CudaGraphs(array.generators), state, lambda: strictly(array))


@cache
def _stream(index: int) -> Any:
    """Always the same: torch has 32 streams and then begins anew, and no two uses are to meet on one."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


class CapturedGraph:
    """A step as a CUDA graph.

    Args:
        graph: what was captured.
        scores: where it leaves the scores.
        generators: of the members.
        streams: the members' generators that the graph draws from; None where it draws nothing.
    """

    def __init__(
        self, graph: Any, scores: Scores, generators: MemberGenerators, streams: Sequence[torch.Generator] | None
    ) -> None:
        self._graph, self._scores, self._generators, self._streams = graph, scores, generators, streams

    def is_valid(self) -> bool:
        return self._streams is None or self._generators.own is self._streams

    def run(self) -> Scores:
        self._graph.replay()
        return {name: value.clone() for name, value in self._scores.items()}
