"""A whole training step that is captured once and run again: when that is done, when it is given up, and why not.

What a capture is, is a backend's affair: on a GPU a CUDA graph of everything in the step, forward, loss, backward,
loss scaling, optimizer, metrics, and keeping what the step gives (`hfta_nb.engine.kernels.capture`). Here is what
decides. A step may be captured if the same call would make the same kernel calls on the same memory, which is so when
it is recorded (`hfta_nb.engine.replay`) and its optimizers are bound (`ArrayOptimizer.ready`). What
those are bound to are *marks*; a capture is good for as long as they are the same objects. Learning rates and loss
scales are read from the device, so that they may change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray, MemberGenerators
from hfta_nb.engine.array.inspect import graphs_of, strictly
from hfta_nb.engine.comparison import Saved, nudge, other_than, streams_by_member
from hfta_nb.engine.distances import Change
from hfta_nb.engine.kernels.capture import NO_ROOM, Backend, Capture, Graph, Part
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.train.step.step_protocol import Scores, ScoreSink

WARM_STEPS = 2
"""Steps that run as ever, with the same marks, before one is captured."""

Guards = Sequence[Any]
Action = Callable[[list[Any]], Scores]


@dataclass(frozen=True)
class Epilogue:
    """What follows a step.

    Attributes:
        do: of the step's inputs and scores.
        keep: what it works on.
    """

    do: Callable[[list[Any], Scores], None]
    keep: ScoreSink


@dataclass
class GraphEntry:
    """What is known of steps of one kind.

    Attributes:
        capture: of the step, and of what follows it unless that is apart.
        buffers: memory that stands for the inputs.
        guards: of the latest step.
        apart: why what follows the step is not captured with it; empty where it is or may be yet.
    """

    capture: Capture
    buffers: list[Any] = field(default_factory=list)
    guards: Guards | None = None
    apart: str = ""

    @property
    def captured(self) -> Graph | None:
        """The step as a graph; None where it runs as ever."""
        return next(iter(self.capture.graphs), None)

    def note(self, guards: Guards | None) -> None:
        """Take the marks of the next step; a capture with others is given up."""
        old, self.guards = self.guards, guards
        if guards is None or old is None or [id(m) for m in guards] != [id(m) for m in old]:
            self.capture.changed()

    def replay(self, leaves: Sequence[Any]) -> Scores:
        """Run the capture with these inputs."""
        assert self.captured is not None  # as the caller has seen
        self.fill(leaves)
        self.capture.replays += 1
        scores: Scores = self.captured.run()
        return scores

    def fill(self, leaves: Sequence[Any]) -> list[Any]:
        """The inputs in memory that is always the same."""
        if not self.buffers:
            self.buffers = [torch.empty_like(v) if isinstance(v, Tensor) else v for v in leaves]
        for buffer, value in zip(self.buffers, leaves, strict=True):
            if isinstance(buffer, Tensor) and buffer is not value:
                buffer.copy_(value, non_blocking=True)
        return self.buffers


class StepGraph:
    """Captures steps by kind, and runs them.

    Args:
        backend: what captures.
        state: all tensors that a step changes, by name, but for the random streams.
        strictly: around a step whose replay is to raise its error, rather than to be answered by another way to run.
    """

    most_kinds = 4

    def __init__(
        self,
        backend: Backend,
        state: Callable[[], Mapping[str, Tensor]],
        strictly: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.backend, self._state, self._strictly = backend, state, strictly
        self._kinds: dict[Hashable, GraphEntry] = {}

    def notes(self) -> list[str]:
        """How steps run, each way once."""
        known = self._kinds.values()
        ways = [k.capture.note for k in known if k.captured is not None]
        ways += [k.capture.note for k in known if k.capture.reason]
        ways += [f"metrics beside the graph: {k.apart}" for k in known if k.apart and not k.capture.reason]
        return list(dict.fromkeys(ways))

    def known(self, kind: Hashable) -> GraphEntry | None:
        """What is known of a kind of steps."""
        return self._kinds.get(kind)

    def release(self) -> bool:
        """Give captures up for the memory that they hold; whether there were any."""
        held = [known.capture for known in self._kinds.values() if known.captured is not None]
        for capture in held:
            capture.graphs, capture.reason = (), "the memory is needed for something else"
        return bool(held)

    def run(
        self,
        kind: Hashable,
        leaves: Sequence[Any],
        guards: Guards | None,
        action: Action,
        rewind: Callable[[], None],
        after: Epilogue | None = None,
        draws: bool = True,
        half: torch.dtype | None = None,
    ) -> Scores:
        """One step.

        Args:
            kind: steps of one kind have inputs of the same shapes, and go the same way.
            leaves: the inputs, tensors and others.
            guards: what a capture depends on; None where the step is not to be captured.
            action: the step of some inputs, as ever.
            rewind: puts back what it notes on the host, so that it can be made once more.
            after: what becomes of the scores, which are not returned then: captured with the step where that can be.
            draws: the step draws random numbers of the members.
            half: the dtype of 16-bit numbers that it computes with, if there are any.
        """
        known = self._kinds.get(kind) or self._new(kind, leaves)
        capture = known.capture
        guard = None if after is None or known.apart else after.keep.guard()
        if not capture.reason:
            known.note(None if guards is None else [*guards, *([] if guard is None else [guard])])
        if capture.reason or guards is None:
            return _followed(action, after)(list(leaves))
        due, buffers = capture.is_due(), known.fill(leaves)
        whole = action if guard is None else _followed(action, after)
        if due:
            self._attempt(known, partial(whole, buffers), rewind, None if guard is None else after, draws, half)
        if known.captured is not None:
            scores = known.replay(buffers)
        elif due or capture.reason:
            scores = whole(buffers)
        else:
            scores = self.backend.warm(partial(whole, buffers))
        return _followed(lambda _: scores, after)(buffers) if guard is None else scores

    def _new(self, kind: Hashable, leaves: Sequence[Any]) -> GraphEntry:
        while len(self._kinds) >= self.most_kinds:
            del self._kinds[next(iter(self._kinds))]
        device = self.backend.generators.device
        away = next((v.device for v in leaves if isinstance(v, Tensor) and v.device != device), None)
        reason = self.backend.refused() if away is None else f"an input is on {away}"
        known = self._kinds[kind] = GraphEntry(Capture(WARM_STEPS, reason))
        return known

    def _attempt(
        self,
        known: GraphEntry,
        action: Callable[[], Scores],
        rewind: Callable[[], None],
        within: Epilogue | None,
        draws: bool,
        half: torch.dtype | None,
    ) -> None:
        """Capture a step; where something was captured with it in vain, try without that from now on."""
        kept = within.keep.tensors() if within else ()
        tensors = {**self._state(), **{f"metric {i}": value for i, value in enumerate(kept)}}

        def save() -> Callable[[], None]:
            put_back = Saved(tensors.values(), self.backend.generators)

            def restore() -> None:
                put_back()
                rewind()

            return restore

        capture = known.capture
        capture.attempt(self.backend, [Part(action, draws)], save, partial(self._other, tensors, half))
        if within is not None and capture.reason not in ("", NO_ROOM):
            known.apart, capture.reason = capture.reason, ""

    def _other(
        self,
        tensors: Mapping[str, Tensor],
        half: torch.dtype | None,
        restore: Callable[[], None],
        action: Callable[[], Scores],
        replay: Callable[[], Scores],
    ) -> str:
        """How the captured step differs from the step; empty where both come to the same."""
        generators = self.backend.generators

        def outcome(run: Callable[[], Scores]) -> dict[str, Tensor | Change]:
            start = Saved(tensors.values(), generators)
            with self._strictly():
                scores = run()
            return _outcome(start, scores, Saved(tensors.values(), generators), tensors, generators)

        def nudged(number: int) -> dict[str, Tensor | Change]:
            restore()
            draw = torch.Generator().manual_seed(number)
            for name, tensor in tensors.items():  # the others are not cast
                cast = half if name.startswith("parameter") else None
                nudge([tensor], partial(matmul_precision.rounding, half=cast), draw)
            return outcome(action)

        restore()
        expected = outcome(action)
        restore()
        allowed, rounds = partial(matmul_precision.tolerance, half=half), half is not None
        return other_than(outcome(replay), expected, allowed, len(generators), nudged, near=False, half=rounds)


def graph_of(array: FusedArray, state: Callable[[], Mapping[str, Tensor]]) -> StepGraph | None:
    """What captures an array's steps; None where there is nothing to be had from that, as on a CPU.

    Args:
        state: all tensors that a step changes, by name, but for the random streams.
    """
    backend = graphs_of(array)
    return None if backend is None else StepGraph(backend, state, lambda: strictly(array))


def _outcome(
    start: Saved, scores: Scores, end: Saved, tensors: Iterable[str], generators: MemberGenerators
) -> dict[str, Tensor | Change]:
    """What a step comes to: changes of tensors, scores, random streams.

    Args:
        start, end: the tensors before and after the step.
        scores: what it gives.
        tensors: the names of those that are saved.
        generators: of the members, as they are after the step.
    """
    found: dict[str, Tensor | Change] = dict(zip(tensors, map(Change, start.values, end.values), strict=True))
    found |= {f"score {name}": value.clone() for name, value in scores.items()}
    return found | streams_by_member(generators)


def _followed(action: Action, after: Epilogue | None) -> Action:
    """The step and what follows it."""
    if after is None:
        return action

    def both(leaves: list[Any]) -> Scores:
        after.do(leaves, action(leaves))
        return {}

    return both
