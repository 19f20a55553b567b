"""Folds events into the state of a run.

The live view, the leaderboard, the figures, the command line and the replay of a saved run all
read a `History`, so that none of them can disagree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hfta_nb.errors.plain_text import visible
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event, Json

_WITH_RUN = {ev.FAILED: "the run failed", ev.INTERRUPTED: "the run was interrupted", ev.STOPPED: ev.WITH_RUN}
"""The reason, by state, of members that go on when the run does."""
LOST = "the process that trained it ended before the run did (it was killed, or the machine stopped)"


@dataclass
class Curve:
    """Points of one member in the order in which they were made: epoch, optimizer step, value, time.

    Times are in seconds since the epoch (`time.time`), NaN where unknown.
    """

    epochs: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, epoch: float, step: int, value: float, time_s: float = math.nan) -> None:
        """Append a point; points at or beyond its step (of a run resumed from before) are dropped first."""
        while self.steps and self.steps[-1] >= step:
            self.epochs.pop()
            self.steps.pop()
            self.values.pop()
            self.times.pop()
        self.epochs.append(epoch)
        self.steps.append(step)
        self.values.append(value)
        self.times.append(time_s)


@dataclass
class Member:
    """The state of one variant.

    Attributes:
        planned: epochs of the run in which it began; 0 before.
        replanned: epochs done when the run was first given another number of epochs; 0 before.
    """

    id: int
    config: dict[str, Json]
    seed: int
    group: int = 0
    state: str = ev.WAITING
    reason: str = ""
    detail: str = ""
    best_epoch: int = 0
    best_value: float = math.nan
    planned: int = 0
    replanned: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    step_loss: Curve = field(default_factory=Curve)
    shares: Curve = field(default_factory=Curve)  # seconds of training since the last such point, shared by the array
    check: ev.MemberChecked | None = None

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return max((int(c.epochs[-1]) for c in self.curves.values() if c.epochs), default=0)

    @property
    def time_s(self) -> float:
        """Its part of the time that its array has trained, in seconds: members that train together share it evenly."""
        return math.fsum(self.shares.values)

    def last(self, metric: str) -> float:
        """The metric's last value; NaN without values."""
        curve = self.curves.get(metric)
        return curve.values[-1] if curve is not None and curve.values else math.nan

    def at_best(self, metric: str) -> float:
        """The metric at the best epoch; its last value if there is no best epoch; NaN without values."""
        curve = self.curves.get(metric)
        if curve is None or not curve.values:
            return math.nan
        if self.best_epoch in curve.epochs:
            return curve.values[curve.epochs.index(self.best_epoch)]
        return curve.values[-1]


@dataclass(frozen=True)
class Placement:
    """An array on places of a run with several workers.

    Attributes:
        group: the array's number.
        slots: places, from 0.
        start_s, end_s: in seconds since the epoch; NaN for an end that is not known yet.
        complete: whether the array was done then.
    """

    group: int
    slots: tuple[int, ...]
    start_s: float
    end_s: float = math.nan
    complete: bool = False


class History:
    """The state of a run, made from its events.

    Attributes:
        run: the first event, or None before it came; of a run that was resumed, the last such.
        begin_s: when the run began for the first time, in seconds since the epoch; 0 before.
        took_s: seconds from its first event on, over all resumptions, pauses left out.
        state, reason, detail: of the run as a whole; WAITING before it starts.
        phase: the current activity, for example "tuning".
        members: by id, in the order of the grid.
        groups: how the variants were grouped.
        progress: the last `StepsDone`.
        speeds: per group, its `SpeedMeasured`.
        halvings: `ArrayHalved`, oldest first.
        placements: where arrays have trained, in a run with several workers, oldest first.
        slots: number of places of such a run; 0 of others.
        differences: `DifferenceFound`, oldest first; of each array and part of the model the last.
        samples: `DeviceSampled`, oldest first.
        pauses: times (begin, end) in seconds since the epoch; the last end is None while paused.
        tried: `ForwardTried`, oldest first.
        rates: per group, its `RateMeasured`.
        edits: `MemberEdited`, oldest first: the lineage of the members.
        refusals: `RequestRefused`, oldest first.
    """

    def __init__(self) -> None:
        self.run: ev.RunStarted | None = None
        self.begin_s = self.took_s = self._last_s = 0.0
        self.state = ev.WAITING
        self.reason = ""
        self.detail = ""
        self.phase = ""
        self.members: dict[int, Member] = {}
        self.groups: tuple[ev.GroupRecord, ...] = ()
        self.progress: ev.StepsDone | None = None
        self.speeds: dict[int, ev.SpeedMeasured] = {}
        self.halvings: list[ev.ArrayHalved] = []
        self.placements: list[Placement] = []
        self.slots = 0
        self.differences: list[ev.DifferenceFound] = []
        self.samples: list[ev.DeviceSampled] = []
        self.pauses: list[tuple[float, float | None]] = []
        self.checkpoint: ev.CheckpointSaved | None = None
        self.tried: list[ev.ForwardTried] = []
        self.rates: dict[int, ev.RateMeasured] = {}
        self.edits: list[ev.MemberEdited] = []
        self.refusals: list[ev.RequestRefused] = []

    def add(self, event: Event) -> None:
        """Take one event in."""
        if self.state == ev.RUNNING and not isinstance(event, ev.RunStarted):
            self.took_s += max(0.0, event.time_s - self._last_s)
        self._last_s = event.time_s
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.run.metrics if self.run else ()

    @property
    def maximize(self) -> bool:
        return self.run is not None and self.run.direction == "maximize"

    def count(self, *states: str) -> int:
        """How many members are in one of these states."""
        return sum(m.state in states for m in self.members.values())

    @property
    def fruitless(self) -> bool:
        """Whether all members have failed, or diverged before their first good epoch."""
        there = [m for m in self.members.values() if m.state != ev.DELETED]
        lost = [m.state == ev.FAILED or (m.state == ev.DIVERGED and not m.best_epoch) for m in there]
        return bool(lost) and all(lost)

    def leaderboard(self) -> list[Member]:
        """Members from best to worst, without deleted ones; those without a finite best (diverged from the start) last,
        by id."""

        return sorted((m for m in self.members.values() if m.state != ev.DELETED), key=self._rank())

    @property
    def leader(self) -> Member | None:
        """The first of the leaderboard; None where nobody is on it."""
        return min((m for m in self.members.values() if m.state != ev.DELETED), key=self._rank(), default=None)

    def _rank(self) -> Callable[[Member], tuple[bool, float, int]]:
        maximize = self.maximize

        def key(member: Member) -> tuple[bool, float, int]:
            value = member.best_value
            if math.isnan(value):
                return (True, 0.0, member.id)
            return (False, -value if maximize else value, member.id)

        return key

    def memory_of(self, member: Member) -> tuple[float, float]:
        """The memory that a member takes in its array, in bytes, and its share of the array's; NaN where not known."""
        return _memory(next((g for g in self.groups if member.id in g.variants), None))

    def rows(self) -> list[dict[str, Any]]:
        """The leaderboard as plain rows: member, state, best epoch, metrics at it, the axes, and the last metrics."""
        found = []
        for member in self.leaderboard():
            row: dict[str, Any] = {"member": member.id, "state": member.state}
            row |= {"best_epoch": member.best_epoch, "epochs": member.epoch}
            row |= {name: member.at_best(name) for name in self.metrics}
            row |= member.config
            row["reason"] = visible(member.reason)
            row.setdefault("seed", member.seed)
            row |= {f"last_{name}": member.last(name) for name in self.metrics}
            found.append(row)
        return found

    def costs(self) -> dict[int, dict[str, float]]:
        """What each member took: seconds and their share of the time that the run has trained, bytes and their share of
        its array's; NaN where that isn't known."""
        total_s, found = math.fsum(m.time_s for m in self.members.values()), {}
        memory = {variant: _memory(group) for group in reversed(self.groups) for variant in group.variants}
        for member in self.members.values():
            memory_bytes, memory_share = memory.get(member.id, _memory(None))
            time_share = member.time_s / total_s if total_s else math.nan
            found[member.id] = {"time_s": member.time_s, "time_share": time_share,
                                "memory_bytes": memory_bytes, "memory_share": memory_share}  # fmt: skip
        return found

    # One handler per event.

    def _run_started(self, event: ev.RunStarted) -> None:
        kept = self.members if event.resumed else {}
        for member in kept.values():
            if member.planned not in (0, event.epochs) and not member.replanned:
                member.replanned, member.planned = member.epoch, member.planned if member.epoch else event.epochs
        self.run = event
        self.begin_s = self.begin_s if event.resumed and self.begin_s else event.time_s
        for member in kept.values():
            if member.reason and member.reason == _WITH_RUN.get(member.state):
                member.state, member.reason = ev.WAITING, ""
        self.state, self.reason, self.detail, self.phase = ev.RUNNING, "", "", ""
        self.members = {v.id: kept.get(v.id) or Member(v.id, v.config, v.seed) for v in event.variants}
        for variant in event.variants:  # one that was added may have brought an axis
            self.members[variant.id].config = variant.config
        for edit in self.edits:
            self._configure(edit)

    def _plan_made(self, event: ev.PlanMade) -> None:
        self.groups = event.groups
        for group in event.groups:
            for variant in group.variants:
                self.members[variant].group = group.index

    def _phase_changed(self, event: ev.PhaseChanged) -> None:
        self.phase = event.phase + (f" ({event.detail})" if event.detail else "")

    def _speed_measured(self, event: ev.SpeedMeasured) -> None:
        self.speeds[event.group] = event

    def _array_halved(self, event: ev.ArrayHalved) -> None:
        self.halvings.append(event)

    def _array_placed(self, event: ev.ArrayPlaced) -> None:
        self.slots = max(self.slots, event.of)
        self._close(event.time_s, event.group, event.complete)
        if event.slots:
            self.placements.append(Placement(event.group, event.slots, event.time_s))

    def _close(self, time_s: float, group: int | None = None, complete: bool = False) -> None:
        """An array, or all, are on no place any longer."""
        for number, held in enumerate(self.placements):
            if math.isnan(held.end_s) and group in (None, held.group):
                self.placements[number] = replace(held, end_s=time_s, complete=complete)

    def _difference_found(self, event: ev.DifferenceFound) -> None:
        where = event.group, event.submodule  # a run that was resumed finds it again
        self.differences = [*(d for d in self.differences if (d.group, d.submodule) != where), event]

    def _steps_done(self, event: ev.StepsDone) -> None:
        last, self.progress = self.progress, event
        since = 0.0 if last is None else last.elapsed_s  # a run that was resumed counts on from its checkpoint
        share = max(0.0, event.elapsed_s - since) / max(1, len(event.variants))
        for variant, loss in zip(event.variants, event.train_loss, strict=True):
            epoch = event.epochs_done
            self.members[variant].step_loss.add(epoch, event.step, loss, event.time_s)
            self.members[variant].shares.add(epoch, event.step, share, event.time_s)

    def _epoch_done(self, event: ev.EpochDone) -> None:
        for name, values in event.metrics.items():
            for variant, value in zip(event.variants, values, strict=True):
                curve = self.members[variant].curves.setdefault(name, Curve())
                curve.add(event.epoch, event.step, value, event.time_s)

    def _member_improved(self, event: ev.MemberImproved) -> None:
        member = self.members[event.variant]
        member.best_epoch, member.best_value = event.epoch, event.value

    def _member_changed(self, event: ev.MemberChanged) -> None:
        member = self.members[event.variant]
        if member.state == ev.DELETED:
            return
        member.state, member.reason, member.detail = event.state, event.reason, event.detail
        if event.state == ev.RUNNING and not member.planned and self.run is not None:
            member.planned = self.run.epochs

    def _run_changed(self, event: ev.RunChanged) -> None:
        if event.state == ev.PAUSED:
            if not self.pauses or self.pauses[-1][1] is not None:
                self.pauses.append((event.time_s, None))
        elif self.pauses and self.pauses[-1][1] is None:
            self.pauses[-1] = (self.pauses[-1][0], event.time_s)
        self.state, self.reason, self.detail = event.state, event.reason, event.detail
        if event.state in ev.FINAL_STATES:
            self._close(event.time_s)
        if event.state in ev.FAILURES:
            for member in (m for m in self.members.values() if m.state not in (*ev.FINAL_STATES, ev.PAUSED)):
                member.state, member.reason = event.state, _WITH_RUN[event.state]

    def interrupt(self, hint: str = "") -> None:
        """Called where nobody is at a run any more that is in progress by its events; `hint` ends the reason."""
        self.add(ev.RunChanged(time.time(), ev.INTERRUPTED, LOST + hint))

    def _device_sampled(self, event: ev.DeviceSampled) -> None:
        self.samples.append(event)

    def _checkpoint_saved(self, event: ev.CheckpointSaved) -> None:
        self.checkpoint = event

    def _member_checked(self, event: ev.MemberChecked) -> None:
        self.members[event.variant].check = event

    def _member_edited(self, event: ev.MemberEdited) -> None:
        def line(edit: ev.MemberEdited) -> tuple[object, ...]:
            return edit.variant, edit.how, edit.parent, edit.epoch, edit.step, edit.changes

        # A run that has gone back to a checkpoint comes to it again.
        self.edits = [*(e for e in self.edits if line(e) != line(event)), event]
        self._configure(event)

    def _configure(self, event: ev.MemberEdited) -> None:
        """A member's values are those of now."""
        member = self.members.get(event.variant)
        if member is not None and event.how in ("set", "copied"):
            member.config = {**member.config, **event.changes}

    def _request_refused(self, event: ev.RequestRefused) -> None:
        self.refusals.append(event)

    def _forward_tried(self, event: ev.ForwardTried) -> None:
        self.tried.append(event)

    def _rate_measured(self, event: ev.RateMeasured) -> None:
        self.rates[event.group] = event


def _memory(group: ev.GroupRecord | None) -> tuple[float, float]:
    """What each member of an array takes, in bytes, and as a share of the array's; NaN where not known."""
    if group is None or not group.memory_bytes:
        return math.nan, math.nan
    count = len(group.variants)  # members of an array take the same, and as much again of what is for all
    return group.memory_bytes + group.fixed_bytes / count, 1 / count


_HANDLERS: dict[type[Event], Any] = {
    ev.RunStarted: History._run_started,
    ev.PlanMade: History._plan_made,
    ev.PhaseChanged: History._phase_changed,
    ev.SpeedMeasured: History._speed_measured,
    ev.ArrayHalved: History._array_halved,
    ev.ArrayPlaced: History._array_placed,
    ev.DifferenceFound: History._difference_found,
    ev.StepsDone: History._steps_done,
    ev.EpochDone: History._epoch_done,
    ev.MemberImproved: History._member_improved,
    ev.MemberChanged: History._member_changed,
    ev.RunChanged: History._run_changed,
    ev.DeviceSampled: History._device_sampled,
    ev.CheckpointSaved: History._checkpoint_saved,
    ev.MemberChecked: History._member_checked,
    ev.ForwardTried: History._forward_tried,
    ev.RateMeasured: History._rate_measured,
    ev.MemberEdited: History._member_edited,
    ev.RequestRefused: History._request_refused,
}
