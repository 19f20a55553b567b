"""Which worker gets which turn: the planner's devices are slots, and a worker has one or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hfta_nb.errors import WorkerError
from hfta_nb.workers.fleet import Rounds
from hfta_nb.workers.fleet.rates import assumed
from hfta_nb.workers.pools.executor import Site, Terms, Worker
from hfta_nb.workers.pools.worker_turns import Turn

Slots: TypeAlias = tuple[int, ...]


class Places:
    """The workers of a run and the rounds of its turns.

    Args:
        site: where the workers are.
        terms: how turns are given to them.

    Attributes:
        slots: the most workers at a time.
    """

    def __init__(self, site: Site, terms: Terms) -> None:
        self.slots = site.slots
        self._site, self._terms = site, terms
        self._rounds: Rounds | None = None
        self._slots: dict[str, Slots] = {}  # of turns that have some, by name
        self._workers: dict[Slots, Worker] = {}
        self._over: set[str] = set()  # turns that ended after the planner had stopped them
        self._failures = 0
        self._reported = False

    def enter(self, turns: Sequence[Turn], work: Mapping[str, float]) -> None:
        """Let the planner know of turns.

        Args:
            turns: new ones.
            work: epochs left, by the name of a turn.

        Raises:
            FleetError: a rate or a term can't be used.
        """
        rates = self._rates(turns)
        if self._rounds is None:
            terms = self._terms
            self._rounds = Rounds(rates, self.slots, delta=terms.delta, alpha=terms.alpha, paradigm=terms.paradigm,
                                  most=terms.most, work=work)  # fmt: skip
            self._start(self._rounds.start())
        else:
            self._start(self._rounds.add(rates, work))

    def due(self, turns: Mapping[str, Turn]) -> list[tuple[Turn, Worker]]:
        """Turns that can begin, each with its worker; workers that are lacking are started."""
        busy = {id(turn.worker) for turn in turns.values() if turn.worker is not None}
        wanted = {name: slots for name, slots in self._slots.items() if turns[name].worker is None}
        for slots in wanted.values():
            if slots not in self._workers and self._cleared(slots, busy):
                self._workers[slots] = self._site.worker(slots)
        self._exchange(wanted, busy)
        found = []
        for name, slots in wanted.items():
            worker = self._workers.get(slots)
            if worker is not None and worker.ready and id(worker) not in busy:
                busy.add(id(worker))
                found.append((turns[name], worker))
        if found:
            self._failures, self._reported = 0, True
        self._dismiss(busy)
        return found

    def coming(self, turns: Mapping[str, Turn]) -> list[Turn]:
        """Turns that wait for workers that somebody else has to make room for."""
        waiting = [turns[name] for name in self._slots if turns[name].worker is None]
        return waiting if self._site.elastic else []

    def over(self, turn: Turn) -> tuple[str, ...]:
        """A turn has ended; returns the names of those that are to make room for another flotilla."""
        assert self._rounds is not None
        if turn.name not in self._slots:  # it was to make room, and ended before it could
            self._over.add(turn.name)
            return ()
        del self._slots[turn.name]
        change = self._rounds.finish([turn.name])
        for name in change.stopped:
            del self._slots[name]
        return (*change.stopped, *self._start(change.started))

    def put_off(self, turn: Turn) -> tuple[str, ...]:
        """A turn is to wait with the others; returns the names of those that are to make room for another flotilla."""
        assert self._rounds is not None
        if self._slots.pop(turn.name, None) is None:  # it is to make room as it is
            return ()
        return self._start(self._rounds.put_off(turn.name))

    def slots_of(self, turn: Turn) -> Slots:
        """The slots of a turn."""
        return self._slots[turn.name]

    def gone(self, worker: Worker, reason: str) -> None:
        """A worker has died.

        Raises:
            WorkerError: one after another dies before it gets a turn.
        """
        for slots, one in list(self._workers.items()):
            if one is worker:
                del self._workers[slots]
                if not worker.ready:
                    self._failures += 1
        if self._failures > self._terms.restarts:
            raise WorkerError(f"no worker can be started: {reason}", where=worker.name)

    def news(self) -> str | None:
        """What is waited for, once: no worker is there yet."""
        if self._reported or not self._workers:
            return None
        self._reported = True
        names = [worker.name for worker in self._workers.values()]
        return f"for {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"

    def _start(self, started: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
        """Note the slots of turns; returns the names of others that are to make room."""
        assert self._rounds is not None
        for name, devices in started.items():
            self._slots[name] = tuple(devices)
        room: tuple[str, ...] = ()
        for name in [name for name in started if name in self._over]:
            self._over.discard(name)
            room += self.over(Turn(name, []))
        return room

    def _rates(self, turns: Sequence[Turn]) -> dict[str, Sequence[float]]:
        """Measured rates, or assumed ones."""
        estimated = {t.name: [assumed(t.pending[0].group.parameters, len(t.live))] for t in turns}
        known = self._terms.rates
        if not known:
            return dict(estimated)
        middle = sorted(rate[0] for rate in known.values())[len(known) // 2]
        return {name: known.get(name, [middle]) for name in estimated}

    def _cleared(self, slots: Slots, busy: set[int]) -> bool:
        """Whether nobody trains on these slots; workers that have some of them and others, and are idle, are ended."""
        there = {other: w for other, w in self._workers.items() if set(other) & set(slots)}
        if any(id(worker) in busy for worker in there.values()):
            return False
        for other, worker in there.items():
            del self._workers[other]
            worker.kill()
        return True

    def _exchange(self, wanted: Mapping[str, Slots], busy: set[int]) -> None:
        """Let idle workers take over turns whose own workers, with as many devices, are not ready yet."""
        taken = set(self._slots.values())
        idle = [s for s, w in self._workers.items() if s not in taken and w.ready and id(w) not in busy]
        for slots in wanted.values():
            own = self._workers.get(slots)
            other = next((one for one in idle if len(one) == len(slots)), None)
            if own is not None and not own.ready and other is not None:
                idle.remove(other)
                self._workers[slots], self._workers[other] = self._workers[other], own

    def _dismiss(self, busy: set[int]) -> None:
        """End workers that no turn waits for, where somebody else could use what they hold."""
        if self._rounds is None or self._rounds.waiting or not self._site.elastic:
            return
        taken = set(self._slots.values())
        for slots, worker in list(self._workers.items()):
            if slots not in taken and id(worker) not in busy:
                del self._workers[slots]
                worker.kill()
