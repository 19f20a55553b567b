"""Captures work as graphs, proves that a graph does what the work does, and falls back to the work itself.

`Capture` decides: what is captured, whether the graphs are used, and why not. Whole training steps and programs of a
user's own loop are captured by it. A `Backend` captures: CUDA graphs (`cuda_graphs`), the only code that needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.errors import out_of_memory

MOST_FAILURES = 3
"""After this many captures in a row that were dropped within `_LASTING` replays, nothing more is captured."""
_LASTING = 10

NO_ROOM = "there is not enough memory to capture it"

Run = Callable[[], Any]
"""Work on a GPU; returns its results: a list of tensors, or tensors by name."""


class Part(NamedTuple):
    """Work that becomes one graph.

    Attributes:
        run: does the work.
        draws: whether it draws random numbers of the members.
    """

    run: Run
    draws: bool


class Graph(Protocol):
    """Captured work."""

    def run(self) -> Any:
        """Do the work; returns the results in memory of their own."""

    def is_valid(self) -> bool:
        """True if the members draw from the generators that were captured."""


class Backend(Protocol):
    """Captures the work of one array.

    Attributes:
        generators: of the members.
    """

    @property
    def generators(self) -> MemberGenerators: ...

    def refused(self) -> str:
        """Why captures are impossible in this process; empty if they are possible."""

    def apart(self) -> Backend:
        """A backend with a memory pool of its own, for parts between which other graphs may run."""

    def warm(self, run: Run) -> Any:
        """Do the work where it will be captured."""

    def launching(self, run: Run) -> float:
        """Do the work; returns how many times as long as the host needs to launch it the work takes."""

    def capture(self, part: Part) -> Graph:
        """Capture work without doing it. It was done by `warm` before.

        Raises:
            Exception: it can't be captured.
        """


@dataclass
class Capture:
    """Some work that is captured after a number of runs, and replayed from then on.

    Attributes:
        warm_runs: how many runs precede a capture.
        reason: why it is not captured; empty if it is, or may be later.
        graphs: one for each part of the work; empty while it runs kernel by kernel.
        waited: runs since the last change of what the work depends on, up to `warm_runs`.
        replays: by these graphs.
        failures: captures in a row that were dropped early.
    """

    warm_runs: int
    reason: str = ""
    graphs: Sequence[Graph] = ()
    waited: int = 0
    replays: int = 0
    failures: int = 0

    @property
    def note(self) -> str:
        """How the work runs, in words; empty while that is not decided."""
        if self.reason:
            return f"not captured: {self.reason}"
        return {0: "", 1: "captured as one graph", 2: "captured as two graphs"}[len(self.graphs)]

    def is_due(self) -> bool:
        """True if the next run is to be captured first; counts it otherwise. Graphs that are outdated are dropped."""
        if self.graphs and not all(graph.is_valid() for graph in self.graphs):
            self.drop()
        if self.reason or self.graphs:
            return False
        self.waited += 1
        return self.waited > self.warm_runs

    def changed(self) -> None:
        """Drop the graphs and wait again, because what the work depends on has changed."""
        self.drop()
        self.waited = 0

    def drop(self) -> None:
        """Drop the graphs; the work is captured again at its next run, unless that happens again and again."""
        if self.graphs:
            self.failures = self.failures + 1 if self.replays < _LASTING else 0
            if self.failures >= MOST_FAILURES:
                self.reason = "what it depends on changes again and again"
        self.graphs, self.replays = (), 0

    def attempt(
        self,
        backend: Backend,
        parts: Sequence[Part],
        save: Callable[[], Callable[[], None]],
        other: Callable[[Callable[[], None], Run, Run], str],
        not_worth: Callable[[], str] = str,
    ) -> None:
        """Capture the work, and use the graphs if they come to the same; `reason` tells otherwise.

        All that the work changes is as before afterwards.

        Args:
            backend: captures.
            parts: of the work, one after another.
            save: saves what the work changes; returns a function that puts it back.
            other: given that function, the work and its replay, runs both from there; returns how the replay differs
                in words, empty if it does not.
            not_worth: may do the work; returns why capturing it does not pay, empty if it does.
        """
        try:
            self.graphs, self.reason = self._proven(backend, parts, save, other, not_worth)
        except Exception as error:
            self.graphs, self.reason = (), NO_ROOM if out_of_memory(error) else message_of(error)

    def _proven(
        self, backend: Backend, parts: Sequence[Part], save: Any, other: Any, not_worth: Callable[[], str]
    ) -> tuple[Sequence[Graph], str]:
        if backend.refused():
            return (), backend.refused()
        restore = save()
        try:
            reason = not_worth()
            if reason:
                return (), reason
            restore()
            pool = backend if len(parts) == 1 else backend.apart()
            graphs = [pool.capture(part) for part in parts]
            difference = other(restore, _joined(parts), _joined(graphs))
            return ((), f"captured, it {difference}") if difference else (graphs, "")
        finally:
            restore()


def _joined(parts: Sequence[Part | Graph]) -> Run:
    """Runs all parts; of several, returns the results in one list."""
    if len(parts) == 1:
        return parts[0].run
    return lambda: [result for part in parts for result in part.run()]


def message_of(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
