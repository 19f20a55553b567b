"""How far a group is: its members, its place in the data, and what is told and kept of that."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hfta_nb.data import Draw, augment
from hfta_nb.errors import StoreError
from hfta_nb.models.metrics import Metric
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.batches import Batch, Batches
from hfta_nb.train.consecutive import batches_of
from hfta_nb.train.group_state import GroupState
from hfta_nb.train.leaders import Pulls
from hfta_nb.train.members import MemberRecord, Members
from hfta_nb.train.memory import Meter
from hfta_nb.train.pending_group import LAST, Refused, WeightsOf
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.settings import Settings
from hfta_nb.train.shared_batches import BatchBuffer, SharedBatches
from hfta_nb.train.speed import SpeedProbe
from hfta_nb.train.step import ArrayStep, Step

UNKNOWN_STEPS = 64
"""Room for the scores of an epoch of unknown length at first; it grows."""

EVENT_INTERVAL_S = 0.2
"""Progress is told at most this often; nothing in the loop waits for a screen."""


class Progress(GroupState):
    """A group that trains; see `GroupRun`, which trains it.

    Args:
        trainer: of the group.
        group: its variants.
        resume: the state to go on from; None to begin.
        buffer: where groups that take turns get their batches; None for batches of its own.

    Attributes:
        members, metrics, validated: once it is built.
        probe: times the first steps; None where it has nothing more to do.
        passed_on: requests that concern its members, which came while another group had its turn.
        refused: arrays that can't join this one.
        pulls: toward the best of its members; None where there are none.
    """

    members: Members
    metrics: Mapping[str, Metric]
    probe: SpeedProbe | None
    validated: Sequence[str]

    def __init__(
        self, trainer: Schedule, group: Group, resume: Mapping[str, Any] | None, buffer: BatchBuffer | None = None
    ) -> None:
        super().__init__(trainer.settings.deterministic)
        self.trainer, self.group, self.data = trainer, group, trainer.data
        self.batch_size = int(group.rows[0]["batch_size"])
        self.buffer = buffer
        self.source: Batches
        if buffer is None:
            self.source = batches_of(trainer.data, self.batch_size, self.settings.device, self.settings.dtype)
            self.source.own = self.settings.refilled
            self.source.draws = [Draw.of(group.rows[0])]
            self.source.evaluated = self.settings.validation_batch_size
            self.augmenting = augment.Augmenting(trainer.data, self.settings.device, self.settings.dtype)
        else:
            self.source, self.augmenting = SharedBatches(buffer), buffer.augmenting
        how = self.settings.pulling
        self.pulls = None if how is None else Pulls(how)
        self.resume = resume
        self.passed_on: list[ev.Request] = []
        self.refused = Refused()
        self.stage = "building"
        self.differences: set[str] = set()  # parts of the model that are known to have differed
        self.whole = True  # whether memory that runs out leaves all as it was before
        self.meter: Meter | None = None
        self.probe: SpeedProbe | None = None
        self.attached: Any = None  # see `featured_batches`
        self._stream: Iterator[Batch] | None = None
        self._stream_order: Any = None  # of its members' data
        self.gone: dict[int, MemberRecord] = {}  # by variant that rows are built as, of those that train no more
        self.samples = 0
        self.last_reported = time.perf_counter()

    def begin(self, step: Step, row_ids: Sequence[int]) -> None:
        """Train with this step, as it was built; see `go_on`. Its members have done nothing yet."""
        s = self.settings
        self.whole = getattr(step, "whole", True)  # a step of several devices can't be undone
        self.metrics = s.family.metrics_for(s.data)
        _, self.validated = s.family.scores_for(s.data)
        self.go_on(step, range(len(step)), row_ids, self.new_scores(len(step)))
        unpads, every = [step.unpad(i) for i in range(len(step))], s.validate_every == 1
        self.members = Members(self.group, s.monitor, s.maximize, s.patience, unpads, every, s.min_delta)

    @property
    def settings(self) -> Settings:
        """Of the run: requests change them."""
        return self.trainer.settings

    @property
    def length(self) -> int | None:
        """Steps of an epoch; None while that is not known."""
        return self.trainer.batches(self.group)

    @property
    def budget(self) -> int:
        """Epochs of the array that its members train together; some may have more."""
        ends = [member.start + self.trainer.budget(member.id) for member in self.members.active]
        return min(ends, default=self.settings.epochs)

    @property
    def built(self) -> bool:
        """Whether there are members and a step."""
        return hasattr(self, "members")

    @property
    def row_records(self) -> list[MemberRecord]:
        """Per row of the step, who says on what data it trains: that of its own, as far as it has been a member's.

        If all had the data of the first in a deterministic study, members might share it that had their own before.
        """
        active = self.members.active
        if not (active and self.settings.deterministic):
            return self.spread(active)
        return self.spread(active, [self.gone.get(variant, active[0]) for variant in self.row_ids])

    def left(self, member: MemberRecord) -> int:
        """Epochs that a member still trains."""
        return self.trainer.budget(member.id) - (self.epoch - member.start)

    def new_scores(self, members: int) -> EpochScores:
        """Room for an epoch's scores of so many members."""
        s = self.settings
        training, _ = s.family.scores_for(s.data)
        steps = self.length or UNKNOWN_STEPS
        return EpochScores(training, self.metrics, steps, members, s.score_dtype, s.device)

    # Data.

    def order(self) -> tuple[list[int], list[int], list[Draw]]:
        """Per row of the step, of its member's data: the seed, the passes that it began later, and which samples."""
        records = self.row_records
        seeds = [self.settings.seed if (seed := r.row["data_seed"]) is None else int(seed) for r in records]
        return seeds, [record.first_pass for record in records], [Draw.of(record.row) for record in records]

    def prepare(self) -> None:
        """Make the next batches as the active members want them augmented and standardised."""
        seeds, behind, self.source.draws = self.order()
        self.source.prepare = self.augmenting.of([record.row for record in self.row_records], seeds, behind)

    # Telling.

    def resumed(self) -> None:
        """The run was paused until now."""
        self.last_reported = time.perf_counter()

    def report(self, always: bool = False) -> Iterator[Event]:
        """The steps since the last time, unless that is too short ago; members whose loss is not finite leave."""
        now = time.perf_counter()
        end = self.batch
        if self.reported >= end or not (always or now - self.last_reported >= EVENT_INTERVAL_S):
            return
        block = self.scores.rows["loss"][self.reported : end]  # reading it waits for the device, so it is read seldom
        block = block if self.aligned else block[:, self.rows]
        finite = torch.isfinite(block).all(0).tolist()
        losses = block.mean(0).tolist()
        ids = self.members.ids
        lost = [v for v, ok in zip(ids, finite, strict=True) if not ok]
        rate = self.samples / max(1e-9, now - self.last_reported)
        clock = self.trainer.clock
        clock.tick()
        fresh = self.reported
        waiting = min(1.0, self.source.waited_s / max(1e-9, now - self.last_reported))
        self.reported, self.samples, self.last_reported, self.source.waited_s = end, 0, now, 0.0
        length, left = self.length, clock.remaining_s(self.work_left())
        done = self.epoch + (min(1.0, end / length) if length else 0.0)
        for start, places in reversed(list(self.members.cohorts.items())):  # those that are farthest, last
            step = self.steps - self.members.active[places[0]].first_step
            total = min(self.trainer.budget(ids[i]) for i in places) * length if length else 0
            own = tuple(ids[i] for i in places), tuple(losses[i] for i in places)
            of = self.group.index, step, total, done - start
            yield ev.StepsDone(time.time(), *of, rate, clock.elapsed_s, left, *own, waiting)
        if lost:
            bad = (~torch.isfinite(block)).int().argmax(0).tolist()
            at = {v: fresh + b for v, b in zip(ids, bad, strict=True)}
            begun = {m.id: m.start for m in self.members.active}
            among = f" of {length}" if length else ""
            for variant in lost:
                where = f"in epoch {self.epoch - begun[variant] + 1}, step {at[variant] + 1}{among}"
                yield from self.leave([variant], ev.DIVERGED, f"training loss is not finite {where}")

    def work_left(self) -> float:
        """The work (see `Clock`) of all members that are still to train, from the present step on; NaN while that is
        not known."""
        trainer = self.trainer

        def work(group: Group, members: int, steps: float) -> float:
            length = trainer.batches(group)
            return math.nan if length is None else members * max(0.0, trainer.settings.epochs * length - steps)

        total = sum(work(*part) for part in self.work())
        total += sum(work(*part) for run in trainer.training if run is not self for part in run.work())
        for pending in trainer.waiting:
            steps = 0.0 if pending.run is None else float(pending.run["steps"])
            if pending.end is not None:
                steps = float(pending.end.epochs * (trainer.batches(pending.group) or 0))
            total += work(
                pending.group, len(set(pending.ids) - (set() if pending.begun else trainer.early_stops)), steps
            )
        return total

    def work(self) -> list[tuple[Group, int, int]]:
        """The group, members that still train, and their steps so far."""
        if not self.built:
            return [(self.group, len(self.group.ids), self.steps)]
        return [(self.group, 1, self.steps - member.first_step) for member in self.members.active]

    def between_passes(self) -> bool:
        """Whether all members are at the beginning of a pass through the data, where others can begin."""
        if self.place and self.place == self.source.length:  # the next batch would find it out
            self.pass_, self.place, self._stream = self.pass_ + 1, 0, None
        return not self.place

    # Members.

    def together(self) -> list[Progress]:
        """The arrays that take turns with this one, which comes first, as far as they are built."""
        others = [other for other in self.trainer.training if isinstance(other, Progress) and other is not self]
        return [self, *(other for other in others if other.built)]

    def trains(self, variant: int) -> bool:
        """See `Training`."""
        return self.built and variant in self.members.ids

    def reached(self, variant: int) -> tuple[int, int]:
        """See `Training`."""
        member = self.members.active[self.members.ids.index(variant)]
        return self.epoch - member.start, self.steps - member.first_step

    def change(self, group: Group, variant: int, values: Mapping[str, Any]) -> None:
        """See `Training`."""
        self.group = group
        if self.trains(variant):
            self.members.change(variant, values)

    def become(self, group: Group, records: Mapping[int, MemberRecord]) -> None:
        """The array has these variants from now on; its step has them already.

        Args:
            records: by variant, those of members that have begun elsewhere; others that are new begin.
        """
        self.trainer.clock.tick()
        begins = MemberRecord(-1, {}, 0, start=self.epoch, first_step=self.steps, first_pass=self.pass_)
        begins.begin_s = self.trainer.clock.elapsed_s
        self.group = group
        self.members = self.members.regrouped(group, [self.step.unpad(row) for row in self.rows], records, begins)

    def take_clone(self, clone: Group, source: int, step: Step, chosen: Sequence[int], own: int) -> None:
        """The last member is a clone from now on.

        Args:
            clone: its array alone.
            source: the place of the member that it is a clone of.
            step: with a row for it.
            chosen: per row of this step, that of the step before.
            own: the row of the clone.
        """
        variant, row_ids = clone.ids[0], [self.row_ids[row] for row in chosen]
        row_ids[own] = variant
        self.scores.select(chosen)
        self.go_on(step, [*self.rows, own], row_ids)
        self.members.clone(source, variant, clone.rows[0], step.unpad(own))
        self.group = self.group.beside([(clone, 0)])
        self.trainer.replace(clone, [])
        self.trainer.replace(self.group, [self.group])
        self.probe = None

    def part_with(self, own: Group) -> Iterator[Event]:
        """Go on as if the members that have left for this array of their own had never been in this one."""
        whole = self.group
        for variant in own.ids:
            self.members.drop(variant)
        others = [v for v in whole.ids if v not in own.ids]
        if others:
            self.group = whole.half(others, whole.index, whole.reason)
        self.trainer.replace(whole, [*([self.group] if others else []), own])
        self.probe = None
        yield ev.PlanMade(time.time(), self.trainer.records())

    def leave(
        self, ids: Sequence[int], state: str, reason: str, detail: str = "", hold: bool = False
    ) -> Iterator[Event]:
        """Members end: the array goes on without them.

        Args:
            hold: their rows go by `settle` only, or by whatever puts others in their places.
        """
        gone = [v for v in ids if v in self.members.ids]
        if not gone:
            return
        keep = [i for i, v in enumerate(self.members.ids) if v not in gone]
        if state in (ev.COMPLETE, ev.PRUNED, ev.STOPPED):
            self.keep_last(gone)
        self.gone |= {m.id: m for m in self.members.active if m.id in gone}
        self.go_on(self.step, [self.rows[i] for i in keep], self.row_ids)
        if not hold:
            self.settle()
        yield from self.members.leave(gone, keep, state, reason, detail)

    def keep_weights(self, at: Mapping[int, int | str]) -> None:
        """Keep the present weights of members that still train, by variant the moment that they are kept of."""
        self.members.keep(at, self.step.weights(), self.rows)

    def keep_last(self, ids: Sequence[int]) -> None:
        """Keep the present weights of these members as their last ones, where that is asked for and they have begun."""
        begun = [m.id for m in self.members.active if m.id in ids and self.steps > m.first_step]
        if begun and self.settings.keep_last:
            self.keep_weights(dict.fromkeys(begun, LAST))

    # Checkpoints.

    def save(self, done: bool = False) -> Iterator[Event]:
        """Keep how far the run is."""
        self.settle()
        if self.trainer.save is None:
            return
        if done and self.buffer is not None:  # groups that take turns end one right after another: see `Turns`
            self.trainer.take_weights(self.members.unsaved())
            self.members.saved()
            return
        try:
            path = self.trainer.checkpoint(self.group, None if done else self.state(), self.members.unsaved())
        except StoreError:  # what was saved before may be gone as well: whoever keeps these elsewhere needs all
            for run in (self, *self.trainer.training):
                if isinstance(run, Progress) and run.built:
                    self.trainer.take_weights(run.members.unsaved(held=True))
            raise
        self.members.saved()
        yield ev.CheckpointSaved(time.time(), self.group.index, self.epoch, path)

    def kept(self) -> tuple[Mapping[str, Any] | None, Mapping[WeightsOf, Any]]:
        """See `Training`."""
        if not self.built:
            return self.resume, {}
        unsaved = self.members.unsaved()
        self.members.saved()
        return self.state(), unsaved

    def take_up(self, state: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Go on from what `state` gave, but for the step.

        Args:
            rows: by variant that rows of the step are built as, the values of its training axes.
        """
        self.load_counts(state)
        self.members.load(state["members"], state["ids"])
        self.gone = {v: MemberRecord(v, row, 0) for v, row in rows.items() if v not in state["ids"]}
        self.gone |= {member.id: member for member in self.members.all if member.id in self.gone}
        self.scores.load_state(state["scores"])
        self.source.load_state(state.get("data"))
        if self.pulls is not None:
            self.pulls.load_state(state.get("pulls"), self.settings.device)

    def state(self, ids: Sequence[int] | None = None) -> dict[str, Any]:
        """All that is needed to carry on: a tree of tensors and plain data; of these members alone, if given.

        In a deterministic study it says how many rows the array has, so that it goes on with the same kernels.
        """
        if ids is None:
            self.settle()
        step, scores, kept, rows = self.step, self.scores, list(self.members.ids), self.rows
        placed: dict[str, Any] = {"held": list(self.row_ids), "rows": list(rows)} if rows and not self.aligned else {}
        if ids is not None:
            places = [row for row, v in zip(rows, kept, strict=True) if v in ids]
            placed = {}
            if self.settings.deterministic and isinstance(step, ArrayStep) and len(step) > len(places):
                placed["wide"] = {"rows": places, "members": len(step), "block_size": step.array.block_size}
            step, scores, kept = step.select(places), copy.deepcopy(scores), list(ids)
            scores.select(places)
        return {
            "epochs": self.settings.epochs,
            **self.counts(),
            "ids": kept,
            **placed,
            "scores": scores.state(),
            "members": self.members.state(ids),
            "step": step.state(),
            "data": self.source.state(),
            **({} if self.pulls is None else {"pulls": self.pulls.state(kept)}),
        }
