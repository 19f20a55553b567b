"""Runs programs on a GPU as CUDA graphs, where launching their kernels one by one takes longer than the kernels do.

A study captures whole training steps (`hfta_nb.train.step.cuda`). These graphs serve loops of the user's own, in
which only the calls of an array are known, and evaluation.

Source: "CUDA Graphs" in torch's notes on CUDA semantics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hfta_nb.engine.comparison import Saved
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels import cuda_graphs
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.replay.verify import changing, repeated
from hfta_nb.errors import out_of_memory

DEVICES = {"cuda"}
"""Types of devices with graphs."""

PLAIN_RUNS = 16
"""Replays kernel by kernel before the first capture: a study's whole step is captured earlier."""

HOST_BOUND = 1.5
"""A program is captured if it takes at most this many times the time that the host takes to launch it."""

_MOST_FAILURES = 3
"""After this many captures that the members' random streams have outdated, a program is captured no more."""

Part = Callable[[], list[Tensor]]


class Graphed(Protocol):
    """A program that may run as graphs.

    Attributes:
        graphs: one for each part; empty if the parts run kernel by kernel.
    """

    graphs: Sequence[PartGraph]

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of 16-bit numbers that it computes with; None if there are none."""

    def parts(self) -> Sequence[tuple[Part, bool]]:
        """The parts, in order, and whether each draws random numbers."""


class PartGraph(NamedTuple):
    """A captured part of a program.

    Attributes:
        replay: runs the graph.
        results: where it leaves the results.
        generators: of the members.
        streams: the members' generators that it draws from; None if it draws nothing.
    """

    replay: Callable[[], Any]
    results: Sequence[Tensor]
    generators: MemberGenerators
    streams: Sequence[torch.Generator] | None

    def is_valid(self) -> bool:
        """True if the members draw from the generators that were captured."""
        return self.streams is None or self.generators.own is self.streams

    def run(self) -> list[Tensor]:
        """Run it; returns the results in memory of their own."""
        self.replay()
        return [result.clone() for result in self.results]


class ProgramGraphs:
    """Decides before each replay whether a program runs as graphs, and captures them.

    Args:
        state: of the array.
        program: to run as graphs.

    Attributes:
        note: the decision in words; empty before it.
    """

    def __init__(self, state: ArrayState, program: Graphed) -> None:
        self._state, self._program = state, program
        self._graphs: Sequence[PartGraph] = ()
        self._runs, self._failures, self._over = 0, 0, False
        self.note = ""

    def prepare(self) -> None:
        """Set the program's graphs for its next run. Its inputs are filled in."""
        program, device = self._program, self._state.generators.device
        program.graphs = ()
        if self._over or cuda_graphs.capturing(device):
            return
        self._runs += 1
        if self._graphs and not all(graph.is_valid() for graph in self._graphs):
            self._outdated()
        if not self._graphs and self._runs > PLAIN_RUNS:
            self._decide(device)
        program.graphs = self._graphs

    def _outdated(self) -> None:
        self._graphs, self._runs, self.note = (), 1, ""
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            self._end("the members' random streams are replaced again and again")

    def _end(self, reason: str) -> None:
        self._over, self.note = True, f"not captured: {reason}"

    def _decide(self, device: torch.device) -> None:
        """Capture the program if that saves time. The state of the array is left unchanged."""
        if cuda_graphs.refused():
            self._end(cuda_graphs.refused())
            return
        state = self._state
        changed = [a.data for a in changing(state)] + [a.grad for a in state.arenas if a.has_grad]
        try:
            before = Saved(changed, state.generators)  # of generators that stay the same ones, from which graphs draw
            try:
                self._capture(device, before)
            finally:
                before()
        except Exception as error:
            self._graphs = ()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._end("there is not enough memory" if out_of_memory(error) else reason)

    def _capture(self, device: torch.device, before: Callable[[], None]) -> None:
        state, parts = self._state, self._program.parts()
        run = partial(_all, [part for part, _ in parts])
        ratio = [launching(run, device) for _ in range(2)][-1]
        if ratio > HOST_BOUND:
            self._end(f"its kernels take {ratio:.1f} times the time of launching them")
            return
        before()
        graphs = [captured(part, state.generators, draws) for part, draws in parts]
        other = repeated(state, before, run, partial(_all, [graph.run for graph in graphs]), self._program.half)
        if other:
            self._end(f"captured, it {other}")
        else:
            self._graphs, self.note = graphs, "captured as one graph" if len(graphs) == 1 else "captured as two graphs"


def _all(parts: Any) -> list[Tensor]:
    return [result for part in parts for result in part()]


def launching(run: Callable[[], Any], device: torch.device) -> float:
    """How many times as long as the host needs to launch it a run takes.

    It runs on the stream of captures: cuBLAS takes a workspace with the first product on a stream, which must not come
    from the memory of a graph, as it outlives the graph.
    """
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    with torch.cuda.stream(cuda_graphs.side_stream(device)):
        run()
    launched = time.perf_counter() - begin
    torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / launched


def captured(part: Part, generators: MemberGenerators, draws: bool) -> PartGraph:
    """Capture a part of a program, which is not run. It was run before on the stream of captures; see `launching`.

    Args:
        draws: it draws random numbers of the members.

    Raises:
        Exception: it cannot be captured.
    """
    graph: Any = torch.cuda.CUDAGraph()
    device = generators.device
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # the graph's memory comes from the device, not from torch's cache
    within = cuda_graphs.captured(graph, device, cuda_graphs.side_stream(device))
    with generators.captured(graph) if draws else nullcontext() as streams, within:
        results = part()
    return PartGraph(graph.replay, results, generators, streams)
