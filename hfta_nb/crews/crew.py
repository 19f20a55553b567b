"""A crew: the groups of a run, trained by several workers at a time, with one store, one history and one mailbox."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hfta_nb import events as ev
from hfta_nb.crews.executor import Executor, Site, Worker
from hfta_nb.crews.places import Places
from hfta_nb.crews.reports import Beat, Done, Lost, Order, Planned, Report, Saved, Told
from hfta_nb.crews.turns import Turn, estimated_s
from hfta_nb.data import AnyData
from hfta_nb.events import Add, Control, Event
from hfta_nb.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.settings import Ends, Save, Settings
from hfta_nb.train.todo import Todo

TICK_S = 0.5
"""Requests are read at least this often."""

STOPPED = "the run was stopped"


class Crew(Schedule):
    """Trains groups with the workers of an executor; iterate it, as a `Trainer`.

    The process that iterates keeps the store, the history and the mailbox: workers send events and checkpoints, and get
    requests. A group whose worker dies goes on from its last checkpoint with another worker.

    Args:
        settings, groups, control, save, resume, ends, take: see `Schedule`.
        executor: where the workers are.
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
    ) -> None:
        self.executor, self.terms = executor, executor.terms
        every_s = self.terms.checkpoint_every_s
        super().__init__(settings, groups, control, save, resume, checkpoint_every_s=every_s, ends=ends, take=take)
        self._turns: dict[str, Turn] = {}
        self._places: Places | None = None
        self._weights: dict[int, Mapping[str, Tensor]] = {}  # best ones that are not kept yet
        self._next_index, self._orders = self.free_index, 0
        self._stopping = self._paused = self._pausing = False

    def placed(self) -> AnyData:
        return self.settings.data  # workers place it on their devices

    def __iter__(self) -> Iterator[Event]:
        self.clock.skip()
        site = self.executor.open(self.settings, len(self.waiting))
        with contextlib.closing(site):
            self._places = Places(site, self.terms)
            todo = list(self.waiting)
            self.waiting.clear()
            self._enter(todo)
            while self._turns or self.waiting:
                yield from self._asked()
                if self._stopping and not self._active:
                    yield from self._stopped()
                    return
                if not (self._stopping or self._paused or self._pausing):
                    yield from self._dispatch(self._places)
                yield from self._heard(site)

    def add(self, groups: Sequence[Group]) -> None:
        shift = max(0, self._next_index - min(group.index for group in groups)) if self._began else 0
        added = [replace(group, index=group.index + shift) for group in groups]
        self.arrays.extend(added)
        if not self._began:
            self.waiting.extend(map(Todo, added))
            return
        self._next_index = max(self._next_index, self.free_index)
        self._enter([Todo(group) for group in added])

    # Who trains what.

    @property
    def _began(self) -> bool:
        return getattr(self, "_places", None) is not None

    @property
    def _active(self) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.worker is not None]

    def _enter(self, todo: Sequence[Todo]) -> None:
        """Let the planner know of further arrays."""
        if not todo:
            return
        assert self._places is not None
        turns = [Turn(f"array {one.group.index}", [one]) for one in todo]
        self._turns |= {turn.name: turn for turn in turns}
        epochs = self.settings.epochs
        self._places.enter(turns, {turn.name: max(1.0, epochs - _epoch(turn.todo[0])) for turn in turns})

    def _dispatch(self, places: Places) -> Iterator[Event]:
        """Give turns to workers that have none."""
        for turn, worker in places.due(self._turns):
            turn.todo = [self._unpacked(todo) for todo in turn.todo]
            self._orders += 1
            turn.begin(worker, self._orders)
            stops, pins = frozenset(self.early_stops), frozenset(self.pinned)
            worker.train(Order(self._orders, tuple(turn.todo), stops, pins, self.checkpoint_every_s))
            yield ev.PhaseChanged(time.time(), turn.index, "starting", f"on {worker.name}")
        if (text := places.news()) is not None:
            yield ev.PhaseChanged(time.time(), self.arrays[0].index, "waiting", text)

    def _unpacked(self, todo: Todo) -> Todo:
        """An array that trains on after its end, with its state."""
        if todo.end is None or self.ends is None:
            return todo
        self.ended.pop(todo.group.index, None)
        return Todo(todo.group, self.ends.read_end(todo.end.file))

    def _release(self, turn: Turn, failed: bool = False) -> None:
        """A turn is over: its worker is free for another one."""
        assert self._places is not None
        self._turns.pop(turn.name)
        for name in self._places.over(turn):
            other = self._turns[name]
            if other.worker is not None and not other.leaving:
                other.leaving = True
                other.worker.send(other.order, ev.Stop())

    # Requests.

    def _asked(self) -> Iterator[Event]:
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

    def _heard(self, site: Site) -> Iterator[Event]:
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
            asked = turn.leaving or self._stopping or self._pausing
            if self.save is not None and (asked or not turn.todo or self.save_due):
                yield self._kept(event)
        elif isinstance(event, ev.StepsDone):
            yield self._timed(turn, event)
        elif isinstance(event, ev.MemberChanged) and event.reason == STOPPED and not self._stopping:
            yield replace(event, state=ev.WAITING, reason="to go on in the next flotilla")
        else:
            yield event

    def _timed(self, turn: Turn, event: ev.StepsDone) -> ev.StepsDone:
        """Progress of one group, with the time of all."""
        turn.remaining_s = event.remaining_s
        left = len(event.variants) * (event.steps_total - event.step) if event.steps_total else math.nan
        turn.pace = left / event.remaining_s if event.remaining_s > 0 else math.nan
        self.clock.tick()
        assert self._places is not None
        remaining_s = estimated_s(turn, list(self._turns.values()), self._work, self._places.slots)
        return replace(event, elapsed_s=self.clock.elapsed_s, remaining_s=remaining_s)

    def _work(self, todo: Todo) -> float:
        length = self.batches(todo.group) or math.nan
        run = todo.run or {"ids": todo.group.ids, "steps": 0}
        return len(run["ids"]) * max(0.0, self.settings.epochs * length - float(run["steps"]))

    def _plan(self, turn: Turn, arrays: Sequence[Group]) -> None:
        """Put the arrays of an order in the place of those before."""
        found = [replace(group, index=turn.numbered(group.index, self._free)) for group in arrays]
        before = {group.index for group in turn.arrays}
        place = min(i for i, group in enumerate(self.arrays) if group.index in before)
        others = [group for group in self.arrays if group.index not in before]
        self.arrays[:] = [*others[:place], *found, *others[place:]]
        turn.arrays = found

    def _save(self, turn: Turn, saved: Saved) -> None:
        """Take a checkpoint of a group in."""
        turn.deaths = 0
        self._plan(turn, saved.arrays)
        groups = {group.index: group for group in turn.arrays}
        indices = [turn.numbered(todo.group.index, self._free) for todo in saved.todo]
        turn.todo = [Todo(groups[i], todo.run) for i, todo in zip(indices, saved.todo, strict=True)]
        self._weights |= saved.weights
        for end in saved.ended:
            if self.ends is not None and end.file in saved.ends:
                index = turn.numbered(end.array, self._free)
                file = self.ends.write_end(index, saved.ends[end.file])
                self.ended[index] = replace(end, array=index, file=file)

    def _kept(self, event: ev.CheckpointSaved) -> ev.CheckpointSaved:
        """Write all checkpoints to the store."""
        todo = [todo for turn in self._turns.values() for todo in turn.todo]
        path = self.keep([*todo, *self.waiting], self._weights)
        self._weights = {}
        return replace(event, path=path)

    def _free(self) -> int:
        self._next_index = max(self._next_index, self.free_index) + 1
        return self._next_index - 1

    # Ends.

    def _done(self, turn: Turn, done: Done) -> Iterator[Event]:
        if self.error is None:
            self.error = done.error
        if done.detail:
            error = done.error or RuntimeError()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield from self._fail(turn, reason, done.detail)
        elif done.stopped:
            turn.rest()
        else:
            self._release(turn)

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
        where = "its last checkpoint" if any(todo.run is not None for todo in turn.todo) else "the start"
        yield ev.PhaseChanged(
            time.time(), turn.index, "starting again", f"{turn.worker.name} {reason}; going on from {where}"
        )
        for variant in turn.live:
            yield ev.MemberChanged(time.time(), variant, ev.WAITING, f"for another worker: {turn.worker.name} {reason}")
        turn.rest()

    def _fail(self, turn: Turn, reason: str, detail: str) -> Iterator[Event]:
        live = turn.live
        turn.todo = []
        self._release(turn)
        for variant in live:
            yield ev.MemberChanged(time.time(), variant, ev.FAILED, reason, detail)
        if self.save is not None:
            yield self._kept(ev.CheckpointSaved(time.time(), turn.arrays[0].index, 0, ""))

    def _silent(self) -> Iterator[Event]:
        """Workers that have not reported for long are ended."""
        for turn in self._active:
            if time.monotonic() - turn.heard_s > self.terms.silent_s:
                yield from self._lost(turn, f"was silent for {self.terms.silent_s:g} s")


def _epoch(todo: Todo) -> float:
    if todo.end is not None:
        return float(todo.end.epochs)
    return 0.0 if todo.run is None else float(todo.run["epoch"])
