"""A whole training step that is captured once and run again: when that is done, when it is given up, and why not.

What a capture is, is a backend's affair: on a GPU a CUDA graph of everything in the step, forward, loss, backward,
loss scaling, optimizer, metrics, and keeping what the step gives (`hfta_nb.train.step.cuda`). Here is what decides. A
step may be captured if the same call would make the same kernel calls on the same memory, which is so when it is
replayed from a recording (`hfta_nb.engine.replay`) and its optimizers are bound (`ArrayOptimizer.ready`). What those
are bound to are *marks*; a capture is good for as long as they are the same objects. Learning rates and loss scales
are read from the device, so that they may change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hfta_nb.engine.array import MemberGenerators
from hfta_nb.engine.comparison import Saved, nudge, other_than, streams_by_member
from hfta_nb.engine.distances import Change
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.errors import out_of_memory
from hfta_nb.train.step.step_protocol import Scores, ScoreSink

WARM_STEPS = 2
"""Steps that run as ever, with the same marks, before one is captured."""

MOST_FAILURES = 3
"""How often in a row a capture may be given up before it has run ten times, until nothing is captured any more."""

_NO_ROOM = "there is not enough memory to capture it"

Guards = Sequence[Any]
Action = Callable[[list[Any]], Scores]


class Captured(Protocol):
    """A captured step."""

    def run(self) -> Scores:
        """Run it; the scores are copies."""

    def is_valid(self) -> bool:
        """Whether what the capture itself depends on is as it was."""


class Backend(Protocol):
    """What captures.

    Attributes:
        generators: of the members.
    """

    generators: MemberGenerators

    def refuses(self, leaves: Sequence[Any]) -> str:
        """Why a step with these inputs can't be captured; empty where it can."""

    def warm(self, action: Callable[[], Scores]) -> Scores:
        """Run a step as ever, in the place where one will be captured."""

    def capture(self, action: Callable[[], Scores], draws: bool = True) -> Captured:
        """Capture a step without running it.

        Args:
            draws: it draws random numbers of the members.

        Raises:
            Exception: it can't be captured. What it has changed on the host is put back.
        """


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
        reason: why they are not captured; empty where they are or may be yet.
        buffers: memory that stands for the inputs.
        guards: of the latest step.
        same: how many steps had these marks.
        runs: of this capture.
        failures: captures in a row that were given up early.
        apart: why what follows the step is not captured with it; empty where it is or may be yet.
    """

    reason: str = ""
    buffers: list[Any] = field(default_factory=list)
    guards: Guards | None = None
    same: int = 0
    captured: Captured | None = None
    runs: int = 0
    failures: int = 0
    apart: str = ""

    def note(self, guards: Guards | None) -> None:
        """Take the marks of the next step; a capture with others is given up."""
        old = self.guards
        self.guards = guards
        if guards is not None and old is not None and [id(m) for m in guards] == [id(m) for m in old]:
            self.same += 1
            return
        self.same = 0
        self.drop()

    def drop(self) -> None:
        """Give the capture up."""
        if self.captured is not None:
            self.failures = self.failures + 1 if self.runs < 10 else 0
            if self.failures >= MOST_FAILURES:
                self.reason = "what the step depends on changes again and again"
        self.captured, self.runs = None, 0

    def replay(self, leaves: Sequence[Any]) -> Scores:
        """Run the capture with these inputs."""
        assert self.captured is not None  # as the caller has seen
        self.fill(leaves)
        self.runs += 1
        return self.captured.run()

    def give_up(self, reason: str, within: Epilogue | None) -> None:
        """Don't capture steps of this kind; or, where something was captured with them, try without that."""
        if within is None:
            self.reason = reason
        else:
            self.apart = reason

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
        ways = ["captured as one graph" for k in self._kinds.values() if k.captured is not None]
        ways += [f"not captured: {k.reason}" for k in self._kinds.values() if k.reason]
        ways += [f"metrics beside the graph: {k.apart}" for k in self._kinds.values() if k.apart and not k.reason]
        return list(dict.fromkeys(ways))

    def known(self, kind: Hashable) -> GraphEntry | None:
        """What is known of a kind of steps."""
        return self._kinds.get(kind)

    def release(self) -> bool:
        """Give captures up for the memory that they hold; whether there were any."""
        held = [known for known in self._kinds.values() if known.captured is not None]
        for known in held:
            known.captured, known.reason = None, "the memory is needed for something else"
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
        known = self._kinds.get(kind)
        if known is None:
            while len(self._kinds) >= self.most_kinds:
                del self._kinds[next(iter(self._kinds))]
            known = self._kinds[kind] = GraphEntry(self.backend.refuses(leaves))
        guard = None if after is None or known.apart else after.keep.guard()
        if not known.reason:
            known.note(None if guards is None else [*guards, *([] if guard is None else [guard])])
        if known.reason or guards is None:
            return _followed(action, after)(list(leaves))
        if known.captured is not None and not known.captured.is_valid():
            known.captured = None  # captured anew at once: nothing about the step has changed
        buffers = known.fill(leaves)
        if known.captured is None and known.same < WARM_STEPS:
            return self.backend.warm(lambda: _followed(action, after)(buffers))
        whole = action if guard is None else _followed(action, after)
        if known.captured is None:
            within = None if guard is None else after
            scores = self._capture(known, lambda: whole(buffers), rewind, within, draws, half)
        else:
            known.runs += 1
            scores = known.captured.run()
        return _followed(lambda _: scores, after)(buffers) if guard is None else scores

    def _capture(
        self,
        known: GraphEntry,
        action: Callable[[], Scores],
        rewind: Callable[[], None],
        within: Epilogue | None,
        draws: bool,
        half: torch.dtype | None,
    ) -> Scores:
        """Capture a step; where it does what the step does, it is that from now on. Returns what the step gives."""
        try:
            captured = self.backend.capture(action, draws)
        except Exception as error:
            known.give_up(*((_NO_ROOM, None) if out_of_memory(error) else (_message(error), within)))
        else:
            kept = within.keep.tensors() if within else ()
            tensors = {**self._state(), **{f"metric {i}": value for i, value in enumerate(kept)}}
            scores = self._compared(known, captured, tensors, action, rewind, within, half)
            if scores is not None:
                return scores
            del captured  # with the memory that it holds
        rewind()
        return action()

    def _compared(
        self,
        known: GraphEntry,
        captured: Captured,
        tensors: Mapping[str, Tensor],
        action: Callable[[], Scores],
        rewind: Callable[[], None],
        within: Epilogue | None,
        half: torch.dtype | None,
    ) -> Scores | None:
        """Make the step, and make it captured as well: whether both come to the same. What the step gives.

        Returns:
            None where there is no memory for both: all is as before the step then, and the kind is given up.
        """
        generators = self.backend.generators
        before: Saved | None = None

        def nudged(number: int) -> dict[str, Tensor | Change]:
            assert before is not None  # the step was made from there
            before()
            rewind()
            draw = torch.Generator().manual_seed(number)
            for name, tensor in tensors.items():  # the others are not cast
                cast = half if name.startswith("parameter") else None
                nudge([tensor], partial(matmul_precision.rounding, half=cast), draw)
            start = Saved(tensors.values(), generators)
            with self._strictly():
                return _outcome(start, action(), Saved(tensors.values(), generators), tensors, generators)

        try:
            before = Saved(tensors.values(), generators)
            rewind()
            with self._strictly():
                scores = action()
            after = Saved(tensors.values(), generators)
            expected = _outcome(before, scores, after, tensors, generators)
        except Exception as error:
            if not out_of_memory(error):
                raise
            if before is not None:
                before()
            known.give_up(_NO_ROOM, None)
            return None
        try:
            before()
            rewind()
            found = _outcome(before, captured.run(), Saved(tensors.values(), generators), tensors, generators)
            allowed = partial(matmul_precision.tolerance, half=half)
            other = other_than(found, expected, allowed, len(generators), nudged, near=False, half=half is not None)
            reason = f"captured, the step {other}" if other else ""
        except Exception as error:
            reason = _message(error)
        after()
        if reason:
            known.give_up(reason, within)
        else:
            known.captured = captured
        return scores


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


def _message(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
