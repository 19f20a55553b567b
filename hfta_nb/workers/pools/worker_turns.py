"""The turns of a run: groups that wait for a worker, or that one trains, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.pending_group import PendingGroup
from hfta_nb.train.plan import Group
from hfta_nb.workers.pools.executor import Worker
from hfta_nb.workers.pools.reports import NEW


@dataclass
class Turn:
    """A group of the plan, and the arrays that it was divided into: one worker trains them one after another.

    Attributes:
        name: for the planner.
        pending: arrays that are not done, each with its last checkpoint.
        worker: that trains it; None while there is none.
        order: number of its order.
        first: number of the array that came first in it.
        arrays: of the order.
        numbers: by a worker's number of an array, the run's.
        deaths: workers that it lost since its last checkpoint.
        heard_s: when its worker last reported, in seconds of a steady clock.
        leaving: whether it was asked to make room for another flotilla.
        late: whether it was asked to stop, because others that read the same stream had to wait for it.
        paused: whether its worker has paused.
        consumer: its name among those who read the same stream; empty where it reads alone.
        remaining_s: what its worker said.
        pace: member-steps a second of its worker.
    """

    name: str
    pending: list[PendingGroup]
    worker: Worker | None = None
    order: int = 0
    first: int = 0
    arrays: list[Group] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    deaths: int = 0
    heard_s: float = 0.0
    leaving: bool = False
    late: bool = False
    paused: bool = False
    consumer: str = ""
    remaining_s: float = float("nan")
    pace: float = float("nan")

    @property
    def live(self) -> list[int]:
        """Variants that still train, by the last checkpoint."""
        return [
            id for pending in self.pending for id in (pending.group.ids if pending.run is None else pending.run["ids"])
        ]

    @property
    def index(self) -> int:
        """Of the array that trains or comes next."""
        return self.pending[0].group.index if self.pending else 0

    def begin(self, worker: Worker, order: int) -> None:
        """A worker gets the turn."""
        self.worker, self.order, self.first, self.heard_s = worker, order, self.index, time.monotonic()
        self.arrays, self.numbers = [pending.group for pending in self.pending], {}
        self.leaving = self.late = self.paused = False

    def rest(self) -> None:
        """No worker has the turn."""
        self.worker, self.leaving, self.late, self.paused = None, False, False, False
        self.remaining_s = self.pace = float("nan")

    def numbered(self, number: int, free: Callable[[], int]) -> int:
        """The run's number of an array; new ones get a free number."""
        if number < NEW:
            return number
        if number not in self.numbers:
            self.numbers[number] = free()
        return self.numbers[number]

    def renumbered(self, event: Event, free: Callable[[], int]) -> Event:
        """An event of the worker with the run's numbers of arrays."""
        known: dict[str, Any] = {}
        group = getattr(event, "group", None)
        if group is not None and group >= NEW:
            known["group"] = self.numbered(group, free)
        if isinstance(event, ev.ArrayHalved):
            known["groups"] = tuple(self.numbered(number, free) for number in event.groups)
        return replace(event, **known) if known else event


def estimated_s(turn: Turn, turns: Sequence[Turn], work: Callable[[PendingGroup], float], workers: int) -> float:
    """Seconds until all turns are done, by what workers say of theirs; NaN while that can't be told.

    Args:
        turn: whose worker has just told.
        turns: all that are not done.
        work: of an array, in member-steps.
        workers: how many train at a time.
    """
    started = [one for one in turns if one.worker is not None]
    if any(one.remaining_s != one.remaining_s for one in started):
        return float("nan")
    paces = [one.pace for one in started if one.pace == one.pace]
    waiting = sum(work(pending) for one in turns if one.worker is None for pending in one.pending)
    if waiting != waiting or (waiting and not paces):
        return float("nan")
    pace = sum(paces) / len(paces) if paces else 1.0
    running = [one.remaining_s for one in started]
    return max([turn.remaining_s, *running, (sum(running) + waiting / pace) / max(1, workers)])
