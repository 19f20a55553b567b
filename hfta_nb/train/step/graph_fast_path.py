"""Fast path: replay the captured step if this step depends on the same objects as the previous one."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.inspect import Standing
from hfta_nb.models.phases import Phase
from hfta_nb.optim import GradScaler
from hfta_nb.train.step.graph import GraphEntry, StepGraph
from hfta_nb.train.step.precision import Precision
from hfta_nb.train.step.step_protocol import Scores, ScoreSink
from hfta_nb.train.step.update import Update


class Stepping(Protocol):
    """A step that may run as a graph; see `ArrayStep`."""

    array: FusedArray
    updates: list[Update]
    phases: tuple[Phase, ...]
    scaler: GradScaler | None
    precision: Precision
    graph: StepGraph | None
    done: int

    def hand(self, keep: ScoreSink, scores: Scores, y: Any) -> None:
        """Let the scores of a step that is done be kept."""


class FastPath:
    """What the step depended on that was replayed last.

    Args:
        step: of one optimizer, whose loss is not scaled.
        graph: that ran it.
        known: its kind.
        standing: the call of `backward` in it.
        keep: what took the scores within the graph.
    """

    __slots__ = ("_bound", "_captured", "_graph", "_guard", "_known", "_precision", "_score", "_standing", "_update")

    def __init__(
        self, step: Stepping, graph: StepGraph, known: GraphEntry, standing: Standing, keep: ScoreSink | None
    ) -> None:
        (self._update,) = step.updates
        self._score, self._precision = self._update.score, step.precision
        self._graph, self._known = graph, known
        assert known.captured is not None  # as `of` has seen
        self._captured = weakref.ref(known.captured)  # whose memory may be wanted elsewhere
        self._standing, self._bound = standing, self._update.optimizer.ready()
        self._guard = self._guarded(keep)

    @classmethod
    def of(cls, step: Stepping, graph: StepGraph, kind: str, x: Any, y: Any, keep: ScoreSink | None) -> FastPath | None:
        """Of the step that has just run, from its beginning.

        Returns:
            None where it was no graph, or to find it again takes more.
        """
        known = graph.known(kind)
        if known is None or known.captured is None:
            return None
        if step.phases or step.scaler is not None or type(x) is not Tensor or type(y) is not Tensor:
            return None
        standing = Standing.of(step.array, known.guards or (), x, y)
        return None if standing is None else cls(step, graph, known, standing, keep)

    def run(self, step: Stepping, x: Any, y: Any, keep: ScoreSink | None) -> Scores | None:
        """The step; None where it is not certain to be the same."""
        captured, update = self._captured(), self._update
        same = step.graph is self._graph and step.precision is self._precision and step.updates[0] is update
        if not same or step.done or update.score is not self._score or captured is None:
            return None
        if self._known.captured is not captured or not captured.is_valid():
            return None
        if self._guarded(keep) is not self._guard or not self._standing.matches(x, y):
            return None
        bound = update.optimizer.ready()
        if bound is None or self._bound is None or len(bound) != len(self._bound):
            return None
        if any(a is not b for a, b in zip(bound, self._bound, strict=True)):
            return None
        scores = self._known.replay((x, y))
        if keep is not None and self._guard is None:
            step.hand(keep, scores, self._known.buffers[1])
            return {}
        return scores

    def _guarded(self, keep: ScoreSink | None) -> object | None:
        """The mark of what takes the scores within the graph; None where nothing does."""
        return None if keep is None or self._known.apart else keep.guard()
