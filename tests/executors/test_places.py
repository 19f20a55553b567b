"""Which worker gets which turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hfta_nb.workers.pools.executor import Terms
from hfta_nb.workers.pools.worker_places import Places
from hfta_nb.workers.pools.worker_turns import Turn


@dataclass(eq=False)
class Idle:
    """A worker that is ready when it is said to be."""

    slots: tuple[int, ...]
    ready: bool = False
    killed: bool = False
    name: str = "a worker"

    def train(self, order: Any) -> None: ...

    def send(self, order: int, request: Any) -> None: ...

    def kill(self) -> None:
        self.killed = True


class Room:
    """Three slots."""

    slots, elastic = 3, False

    def __init__(self) -> None:
        self.made: list[Idle] = []

    def worker(self, slots: Sequence[int]) -> Idle:
        self.made.append(Idle(tuple(slots)))
        return self.made[-1]


def test_an_idle_worker_takes_over_a_turn_of_as_many_devices_as_it_has() -> None:
    """One device is not enough for a turn to which two were given; a worker of two is waited for."""
    room = Room()
    places = Places(room, Terms())  # type: ignore[arg-type]
    turns = {name: Turn(name, []) for name in ("pair", "single")}
    places._slots = {"pair": (0, 1), "single": (2,)}
    assert places.due(turns) == []
    pair, single = room.made
    single.ready = True
    places._slots = {"pair": (0, 1)}  # the single turn has ended, and its worker is idle
    assert places.due(turns) == []
    places._slots = {"pair": (0, 1), "single": (2,)}
    assert places.due(turns) == [(turns["single"], single)]
    pair.ready = True
    turns["single"].worker = single
    assert places.due(turns) == [(turns["pair"], pair)]


def test_an_idle_worker_takes_over_a_turn_whose_worker_is_not_ready() -> None:
    room = Room()
    places = Places(room, Terms())  # type: ignore[arg-type]
    turns = {name: Turn(name, []) for name in ("first", "second")}
    places._slots = {"first": (0,), "second": (1,)}
    places.due(turns)
    room.made[1].ready = True
    places._slots = {"first": (0,)}
    assert places.due(turns) == [(turns["first"], room.made[1])]
