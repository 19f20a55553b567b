"""A pool: the groups of a run, trained by several workers at a time, with one store, one history and one mailbox."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.records import events as ev
from hfta_nb.records.events import Add, Control, Event
from hfta_nb.train.pending_group import Ends, PendingGroup, Save
from hfta_nb.train.plan import Group
from hfta_nb.train.settings import Settings
from hfta_nb.workers.pools.books import Books
from hfta_nb.workers.pools.executor import Executor, Site, Worker
from hfta_nb.workers.pools.reports import Beat, Done, Lost, Order, Planned, Report, Saved, Told
from hfta_nb.workers.pools.shared_streams import SharedStreams
from hfta_nb.workers.pools.worker_places import Places
from hfta_nb.workers.pools.worker_turns import Turn

TICK_S = 0.5
"""Requests are read at least this often."""

STOPPED = "the run was stopped"


class WorkerPool(Books):
    """Trains groups with the workers of an executor; iterate it, as a `Trainer`.

    The process that iterates keeps the store, the history and the mailbox: workers send events and checkpoints, and get
    requests. A group whose worker dies goes on from its last checkpoint with another worker.

    Args:
        settings, groups, control, save, resume, ends, take: see `Schedule`.
        executor: where the workers are.
        ranks: how many devices a slot of a worker has, which train each array together, and whose statistics batch
            norms take then; see `hfta_nb.distributed.DataParallel`.

    Raises:
        WorkerError: there are no workers to be had.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[Group],
        control: Control,
        executor: Executor,
        save: Save | None = None,
        resume: Mapping[str, Any] | None = None,
        ends: Ends | None = None,
        take: Callable[[Add], str] | None = None,
        ranks: tuple[int, str] = (1, "sync"),
    ) -> None:
        self.executor, self.terms, self.ranks = executor, executor.terms, ranks
        super().__init__(settings, groups, control, save, resume, self.terms.checkpoint_every_s, ends, take)
        self._places: Places | None = None
        self._streams: SharedStreams | None = None
        self._orders = 0
        self._stopping = self._paused = self._pausing = False
        self._site: Site | None = executor.open(settings, len(self.waiting), ranks[0])  # before there is a run to fail

    def __iter__(self) -> Iterator[Event]:
        self.clock.skip()
        site = self._site
        assert site is not None  # it is iterated once
        streams = SharedStreams(self.settings, site)
        with contextlib.closing(self), contextlib.closing(streams):
            self._places, self._streams = Places(site, self.terms), streams
            pending = list(self.waiting)
            self.waiting.clear()
            self._enter(pending)
            while self._turns or self.waiting:
                yield from self._requests()
                if self._stopping and not self._active:
                    yield from self._stopped()
                    return
                if not (self._stopping or self._paused or self._pausing):
                    yield from self._dispatch(self._places, streams)
                yield from self._reported(site)
                yield from self._late(streams)

    def close(self) -> None:
        """End the workers."""
        site, self._site = self._site, None
        if site is not None:
            site.close()

    def add(self, groups: Sequence[Group]) -> None:
        shift = max(0, self._next_index - min(group.index for group in groups)) if self._began else 0
        added = [replace(group, index=group.index + shift) for group in groups]
        self.arrays.extend(added)
        if not self._began:
            self.waiting.extend(map(PendingGroup, added))
            return
        self._next_index = max(self._next_index, self.free_index)
        self._enter([PendingGroup(group) for group in added])

    # Who trains what.

    @property
    def _began(self) -> bool:
        return getattr(self, "_places", None) is not None

    @property
    def _active(self) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.worker is not None]

    def _enter(self, pending: Sequence[PendingGroup]) -> None:
        """Let the planner know of further arrays."""
        if not pending:
            return
        assert self._places is not None
        turns = [Turn(f"array {one.group.index}", [one]) for one in pending]
        self._turns |= {turn.name: turn for turn in turns}
        epochs = self.settings.epochs
        self._places.enter(turns, {turn.name: max(1.0, epochs - _epoch(turn.pending[0])) for turn in turns})

    def _dispatch(self, places: Places, streams: SharedStreams) -> Iterator[Event]:
        """Give turns to workers that have none."""
        if streams.possible and any(turn.leaving for turn in self._active):
            return  # the next flotilla begins together, to read together
        begun = places.due(self._turns)
        for turn, worker in begun:
            turn.pending = [self.opened(pending) for pending in turn.pending]
            self._orders += 1
            turn.begin(worker, self._orders)
        shared = streams.begin([turn for turn, _ in begun], places.coming(self._turns))
        for turn, worker in begun:
            stops, pins = frozenset(self.early_stops), frozenset(self.pinned)
            devices = self.ranks[0] * len(places.slots_of(turn)) if all(map(_spreads, turn.pending)) else 1
            more: dict[str, Any] = {"devices": devices, "batch_norm": self.ranks[1], "stream": shared.get(turn.name)}
            worker.train(Order(turn.order, tuple(turn.pending), stops, pins, self.checkpoint_every_s, **more))
            where = worker.name if devices == 1 else f"{devices} devices of {worker.name}"
            shares = ", reading the same batches as others" if turn.name in shared else ""
            yield ev.ArrayPlaced(time.time(), turn.index, worker.name, places.slots_of(turn), places.slots)
            yield ev.PhaseChanged(time.time(), turn.index, "starting", f"on {where}{shares}")
        if (text := places.news()) is not None:
            yield ev.PhaseChanged(time.time(), self.arrays[0].index, "waiting", text)

    def _release(self, turn: Turn) -> None:
        """A turn is over: its worker is free for another one."""
        assert self._places is not None
        self._turns.pop(turn.name)
        self._rest(turn)
        self._make_room(self._places.over(turn))

    def _make_room(self, names: Sequence[str]) -> None:
        """Let turns end with a checkpoint, for the next flotilla."""
        for turn in (self._turns[name] for name in names):
            if turn.worker is not None and not turn.leaving:
                turn.leaving = True
                turn.worker.send(turn.order, ev.Stop())

    def _rest(self, turn: Turn) -> None:
        """No worker has the turn any longer."""
        turn.rest()
        if self._streams is not None:
            self._streams.left(turn)

    def _late(self, streams: SharedStreams) -> Iterator[Event]:
        """Turns for which others had to wait are checkpointed, to go on later at a pace of their own."""
        for consumer, reason in streams.late():
            turn = next((turn for turn in self._active if turn.consumer == consumer), None)
            if turn is not None and turn.worker is not None and not (turn.leaving or turn.late):
                turn.late = True
                turn.worker.send(turn.order, ev.Stop())
                words = f"{turn.worker.name} took batches too slowly: {reason}; it goes on later, apart from them"
                yield ev.PhaseChanged(time.time(), turn.index, "leaving the round", words)

    # Requests.

    def _requests(self) -> Iterator[Event]:
        for request in self.control.poll():
            if isinstance(request, ev.Add):
                yield from self.added(request)
            elif isinstance(request, ev.Pause | ev.Resume):
                self._hold(isinstance(request, ev.Pause))
            elif isinstance(request, ev.Stop) and request.variant is None:
                self._stopping = True
                self._send(request)
            else:
                self._pass_on(request)
        yield from self._held()

    def _pass_on(self, request: ev.Request) -> None:
        """Of one variant."""
        if isinstance(request, ev.Pin):
            self.pin(request)
        elif isinstance(request, ev.Stop) and request.variant is not None:
            self.early_stops.add(request.variant)
        self._send(request)

    def _send(self, request: ev.Request) -> None:
        for turn in self._active:
            assert turn.worker is not None
            turn.worker.send(turn.order, request)

    def _hold(self, pause: bool) -> None:
        if pause != (self._paused or self._pausing):
            self._send(ev.Pause() if pause else ev.Resume())
            if self._streams is not None:
                self._streams.relax(pause)
            self._pausing = pause

    def _held(self) -> Iterator[Event]:
        """Tell when all workers have paused, and when they are to go on."""
        if self._pausing and not self._paused and all(turn.paused for turn in self._active):
            self._paused = True
            self.clock.tick()
            yield ev.RunChanged(time.time(), ev.PAUSED)
        elif self._paused and not self._pausing:
            self._paused = False
            self.clock.skip()
            yield ev.RunChanged(time.time(), ev.RUNNING)

    def _stopped(self) -> Iterator[Event]:
        self.stopped = True
        if self.save is not None:
            yield self._kept(ev.CheckpointSaved(time.time(), self.arrays[0].index, 0, ""))

    # Reports.

    def _reported(self, site: Site) -> Iterator[Event]:
        """What workers have reported."""
        if not self._active and not self._turns:
            return
        reports = site.wait(TICK_S)
        # All that has come counts before silence does: whoever takes the events may not have asked for long.
        for worker, _ in reports:
            turn = self._turn_of(worker)
            if turn is not None:
                turn.heard_s = time.monotonic()
        yield from self._silent()
        for worker, report in reports:
            turn = self._turn_of(worker)
            if turn is not None:
                yield from self._take(turn, report)
            elif isinstance(report, Lost):
                assert self._places is not None
                self._places.gone(worker, report.reason)
        if not reports:
            yield ev.Heartbeat(time.time())

    def _turn_of(self, worker: Worker) -> Turn | None:
        return next((turn for turn in self._active if turn.worker is worker), None)

    def _take(self, turn: Turn, report: Report) -> Iterator[Event]:
        if isinstance(report, Told):
            yield from self._event(turn, turn.renumbered(report.event, self._free))
        elif isinstance(report, Planned):
            self._plan(turn, report.arrays)
            yield ev.PlanMade(time.time(), self.records())
        elif isinstance(report, Saved):
            self._save(turn, report)
        elif isinstance(report, Done):
            yield from self._done(turn, report)
        elif isinstance(report, Lost):
            yield from self._lost(turn, report.reason)
        elif isinstance(report, Beat):
            yield ev.Heartbeat(time.time())

    def _event(self, turn: Turn, event: Event) -> Iterator[Event]:
        if isinstance(event, ev.RunChanged):
            turn.paused = event.state == ev.PAUSED
            yield from self._held()
        elif isinstance(event, ev.CheckpointSaved):
            leaving = turn.leaving or turn.late or self._stopping or self._pausing
            if self.save is not None and (leaving or not turn.pending or self.save_due):
                yield self._kept(event)
        elif isinstance(event, ev.StepsDone):
            assert self._places is not None
            yield self._timed(turn, event, self._places.slots)
        elif isinstance(event, ev.MemberChanged) and event.reason == STOPPED and not self._stopping:
            yield replace(event, state=ev.WAITING, reason="to go on in the next round")
        else:
            yield event

    # Ends.

    def _done(self, turn: Turn, done: Done) -> Iterator[Event]:
        if self.error is None:
            self.error = done.error
        if done.detail:
            error = done.error or RuntimeError()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield from self._fail(turn, reason, done.detail)
        elif done.stopped:
            late, left = turn.late, self._left(turn)
            self._rest(turn)
            if late and self._places is not None:
                self._make_room(self._places.put_off(turn))
            yield left
        else:
            left = self._left(turn, complete=True)
            self._release(turn)
            yield left

    def _lost(self, turn: Turn, reason: str) -> Iterator[Event]:
        """The worker of a turn is gone: another one goes on from its last checkpoint."""
        assert self._places is not None
        assert turn.worker is not None
        turn.worker.kill()  # whatever is left of it
        self._places.gone(turn.worker, reason)
        turn.deaths += 1
        if turn.deaths > self.terms.restarts:
            words = f"{turn.worker.name} {reason}, {turn.deaths} times without a checkpoint in between"
            yield from self._fail(turn, words, "")
            return
        left = self._left(turn)
        where = "its last checkpoint" if any(pending.run is not None for pending in turn.pending) else "the start"
        yield ev.PhaseChanged(
            time.time(), turn.index, "starting again", f"{turn.worker.name} {reason}; going on from {where}"
        )
        for variant in turn.live:
            yield ev.MemberChanged(time.time(), variant, ev.WAITING, f"for another worker: {turn.worker.name} {reason}")
        self._rest(turn)
        yield left

    def _left(self, turn: Turn, complete: bool = False) -> Event:
        """Its worker no longer trains a turn."""
        assert self._places is not None
        assert turn.worker is not None
        return ev.ArrayPlaced(time.time(), turn.first, turn.worker.name, (), self._places.slots, complete)

    def _fail(self, turn: Turn, reason: str, detail: str) -> Iterator[Event]:
        live, left = turn.live, self._left(turn)
        turn.pending = []
        self._release(turn)
        yield left
        for variant in live:
            yield ev.MemberChanged(time.time(), variant, ev.FAILED, reason, detail)
        if self.save is not None:
            yield self._kept(ev.CheckpointSaved(time.time(), turn.arrays[0].index, 0, ""))

    def _silent(self) -> Iterator[Event]:
        """Workers that have not reported for long are ended."""
        for turn in self._active:
            if time.monotonic() - turn.heard_s > self.terms.silent_s:
                yield from self._lost(turn, f"was silent for {self.terms.silent_s:g} s")


def _spreads(pending: PendingGroup) -> bool:
    """Whether several devices can train an array together: all that it is made of must be in it."""
    return not (pending.group.serial or pending.group.likes)


def _epoch(pending: PendingGroup) -> float:
    if pending.end is not None:
        return float(pending.end.epochs)
    return 0.0 if pending.run is None else float(pending.run["epoch"])
