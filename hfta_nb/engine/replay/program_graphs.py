"""Runs programs on a GPU as CUDA graphs, where launching their kernels one by one takes longer than the kernels do.

A study captures whole training steps (`hfta_nb.train.step.graph`). These graphs serve loops of the user's own, in
which only the calls of an array are known, and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from hfta_nb.engine.comparison import Saved
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.capture import Backend, Capture, Graph, Part
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.replay.source import Decision
from hfta_nb.engine.replay.verify import changing, repeated

PLAIN_RUNS = 16
"""Replays kernel by kernel before the first capture: a study's whole step is captured earlier."""

HOST_BOUND = 1.5
"""A program is captured if it takes at most this many times the time that the host takes to launch it."""


class Graphed(Protocol):
    """A program that may run as graphs.

    Attributes:
        graphs: one for each part; empty if the parts run without.
        decision: whether they are compiled.
    """

    graphs: Sequence[Graph]
    decision: Decision

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of 16-bit numbers that it computes with; None if there are none."""

    def parts(self) -> Sequence[Part]:
        """The parts, in order."""


class ProgramGraphs:
    """Decides before each replay whether a program runs as graphs, and captures them.

    Args:
        state: of the array.
        program: to run as graphs.
        backend: captures.
    """

    def __init__(self, state: ArrayState, program: Graphed, backend: Backend) -> None:
        self._state, self._program, self._backend = state, program, backend
        self._capture, self._compiled = Capture(PLAIN_RUNS), program.decision.compiled

    @property
    def note(self) -> str:
        """The decision in words; empty before it."""
        return self._capture.note

    def prepare(self) -> None:
        """Set the program's graphs for its next run. Its inputs are filled in."""
        program, capture, state = self._program, self._capture, self._state
        program.graphs = ()
        if capturing(state.generators.device):
            return
        if self._compiled is not program.decision.compiled:
            self._capture = capture = Capture(warm_runs=1)  # it was replayed often enough
            self._compiled = program.decision.compiled
        if capture.is_due():
            parts = program.parts()
            capture.attempt(
                self._backend,
                parts,
                self._saved,
                partial(repeated, state, half=program.half),
                partial(self._slow, parts),
            )
        program.graphs = capture.graphs
        capture.replays += bool(capture.graphs)

    def _saved(self) -> Callable[[], None]:
        state = self._state
        changed = [a.data for a in changing(state)] + [a.grad for a in state.arenas if a.has_grad]
        return Saved(changed, state.generators)  # of generators that stay the same ones, from which graphs draw

    def _slow(self, parts: Sequence[Part]) -> str:
        ratio = [self._backend.launching(lambda: [part.run() for part in parts]) for _ in range(2)][-1]
        return "" if ratio <= HOST_BOUND else f"its kernels take {ratio:.1f} times the time of launching them"
