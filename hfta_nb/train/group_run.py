"""One group from its first step to its last: the only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from hfta_nb.data import LONG_PASS, warn_of_long_pass
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import checkpoint, failures, featured_batches, population, rebuild, requests, slots
from hfta_nb.train.batches import Batch
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.group_state import position_of
from hfta_nb.train.members import kept_bytes
from hfta_nb.train.memory import Meter, can_record, free_bytes, release
from hfta_nb.train.pending_group import WeightsOf
from hfta_nb.train.scores import accumulators, add, finished
from hfta_nb.train.speed import SpeedProbe, probe_of
from hfta_nb.train.step import ArrayStep, Scores
from hfta_nb.train.step.rollback import on_host
from hfta_nb.train.whole_sets import WholeSets

TURN = ev.Heartbeat(0.0)
"""Ends a group's turn where groups take turns: compared by identity, and no event that anybody else gets."""


class GroupRun(Progress):
    """One group from its first step to its last."""

    deferred = False
    """Whether another array trains first, which this one then joins."""

    def events(self) -> Iterator[Event]:
        """The work; what is held open (a loader's processes) is let go of at the end, however it comes."""
        try:
            yield from self._events()
        finally:
            self.source.close()

    def _events(self) -> Iterator[Event]:
        index = self.group.index
        yield ev.PhaseChanged(time.time(), index, "building", f"{len(self.group.variants)} members")
        beside = self.buffer is not None and self.settings.device.type == "cuda"  # a peak there is everybody's
        if self.settings.measure and self.resume is None and not self.group.serial and not beside:
            self.meter = Meter(self.settings.device)
        self.open()
        yield from requests.before(self)
        for variant in sorted(self.trainer.early_stops & set(self.members.ids)):
            why = "stopped before it started" if self.resume is None else "stopped by request"
            yield from self.leave([variant], ev.STOPPED, why)
        yield from self.members.start()
        # Trials of many sizes run together as others run that were interrupted.
        fixed = slots.refills(self) and self.group.architectures > 1 and self.settings.strategy != "measured"
        if self.resume is None and isinstance(self.step, ArrayStep) and not (self.settings.deterministic or fixed):
            self.step.tune_at_first()
        self.stage = "training"
        yield from requests.begun(self)
        self.trainer.clock.cool()
        settings = self.step.array.settings if isinstance(self.step, ArrayStep) else None
        yield ev.PhaseChanged(time.time(), index, "training", settings.tuned if settings and settings.brief else "")
        self.probe = self._probe()
        if self.ending and self.members.ids:
            yield from self._end_epoch()
        if self.batch == 0 and self.epoch:
            yield from self._between_epochs()
        while self.members.ids and not (self.over or self.deferred):
            yield from self._run_epoch()
            if self.trainer.stopped:
                return
        if self.deferred:
            return
        yield from rebuild.longer(self)
        self.probe = None
        checkpoint.keep_end(self)
        for variant in list(self.members.ids):
            yield from self.leave([variant], ev.COMPLETE, "")
        yield from self.save(done=True)

    def open(self) -> None:
        """Build the members and their records, and take up what was left off."""
        checkpoint.build(self)

    def forget(self) -> None:
        """Let go of everything that takes memory on the device; the run can't go on after this."""
        self.source.close()
        for name in ("step", "members", "scores", "probe", "resume", "meter", "_stream"):
            self.__dict__.pop(name, None)

    def to_host(self) -> tuple[list[int], Mapping[str, Any] | None, Mapping[WeightsOf, Any]]:
        """Free the device: the members that still train, how far they are, and their weights that are not saved yet.

        Before the first step they are where they were; None where they had not begun.
        """
        ids = self.members.ids if self.built else self.group.ids if self.resume is None else self.resume["ids"]
        state = self.resume if self.stage == "building" else on_host(self.state())
        unsaved = on_host(self.members.unsaved()) if self.built else {}
        self.forget()
        release(self.settings.device)
        return list(ids), state, unsaved

    @property
    def over(self) -> bool:
        """Whether all members have trained as long as they may, or one of an array that nobody joins."""
        over = [self.left(member) <= 0 for member in self.members.active]
        return all(over) if slots.refills(self) else any(over)

    def _validates(self, start: int, places: Sequence[int]) -> bool:
        """Whether members that began together are validated after this epoch."""
        last = any(self.left(self.members.active[place]) == 0 for place in places)
        return last or self.settings.validates(self.epoch - start)

    @property
    def position(self) -> tuple[int, float, int]:
        """How far the group is, to compare: the epoch, the step in it (validation comes after all), and the batch of
        validation."""
        if not self.built:
            return position_of(self.resume)
        if self.ending:
            return self.epoch - 1, math.inf, self.held_out
        return self.epoch, self.batch, 0

    def _run_epoch(self) -> Iterator[Event]:
        unknown = self.length is None
        while True:
            yield from self._requests()
            if self.trainer.stopped or not self.members.ids:
                return
            yield from featured_batches.attach(self)
            batch = self._next_batch()
            if batch is None:
                break
            yield from self._train_step(batch)
            if self.trainer.save_due and self.members.ids:
                yield from self.save()
            if self.batch == LONG_PASS and unknown:
                where, remedy = f"{self.data.name}, pass {self.pass_ + 1}", "stop, and give the study steps_per_epoch"
                detail = warn_of_long_pass(where, remedy)
                yield ev.PhaseChanged(time.time(), self.group.index, "training", detail)
            if self.buffer is not None:
                yield TURN
        if self.batch >= LONG_PASS and unknown:  # it has an end
            yield ev.PhaseChanged(time.time(), self.group.index, "training")
        yield from self.report(always=True)
        self.epoch, self.batch, self.reported = self.epoch + 1, 0, 0
        if not self.members.ids:
            return
        self.step.end_epoch()
        if self.pulls is not None:
            yield from self.pulls.end_epoch(self.epoch, self.steps)
        self.ending = True
        yield from self._end_epoch()
        yield from self._between_epochs()
        if self.trainer.save_due and self.members.ids and not self.deferred:
            yield from self.save()

    def _between_epochs(self) -> Iterator[Event]:
        """Members go and come; what was asked of those that come, while they waited, is done."""
        self.deferred = yield from slots.between(self)
        if not self.deferred:
            yield from requests.before(self)
            yield from requests.begun(self)

    def _next_batch(self) -> Batch | None:
        """The next batch of the epoch; None after its last.

        An epoch is a pass through the data, or a number of steps: then passes follow one another, whatever the epoch.
        """
        most = self.settings.steps_per_epoch
        if most is not None and self.batch >= most:
            return None
        seeds, behind, _ = order = self.order()
        while True:
            if self._stream is None or order != self._stream_order:  # a pass begins, or other members train
                self.prepare()
                self._stream, self._stream_order = self.source.epoch(self.pass_, self.place, seeds, behind), order
            batch = next(self._stream, None)
            if batch is not None:
                self.place += 1
                return batch
            self.pass_, self.place, self._stream = self.pass_ + 1, 0, None
            if self.length is None and self.source.length is not None:
                self.trainer.learn(self.batch_size, self.source.length)
            if most is None:
                return None

    def _train_step(self, batch: Batch) -> Iterator[Event]:
        yield from self._tuned(batch)
        probe = self.probe if self.probe is not None and self.probe.due(self.step) else None
        begin = probe.start() if probe else 0.0
        failure = None
        try:
            with self.meter or nullcontext():
                self.scores.begin(self.batch)
                self.step.train(*batch.inputs, keep=self.scores)
        except Exception as error:
            self.place, self._stream = self.place - 1, None  # of this batch no step has been made
            self.whole = getattr(self.step, "whole", True)
            if failures.of_nobody(self, error):
                return
            failure = failures.failure_of(self, error)
            if failure is None:
                raise
        if failure is not None:
            self.probe = None
            yield from failures.leave_out(self, failure)
            return
        if probe:
            probe.stop(begin)
        featured_batches.check(self)
        self.scores.end(batch.size)
        self.batch, self.steps = self.batch + 1, self.steps + 1
        self.samples += batch.size * len(self.members.ids)
        if self.pulls is not None and self.pulls.due(self.steps):
            slots = {member.id: member.slot for member in self.members.active}
            self.pulls.pull(self.step, self.rows, slots, self.scores.rows, self.batch)
        self.trainer.clock.did(len(self.members.ids), probe is not None)
        if self.meter is not None and self.steps >= 2:  # the second has the optimizer's state beside its activations
            yield from self._measured(self.meter)
        if probe:
            yield from self._beside(probe, batch)
        yield from self._differences()
        yield from self.report()

    def _tuned(self, batch: Batch) -> Iterator[Event]:
        """Choose before the first step what is fastest, and say so where that takes time."""
        if not isinstance(self.step, ArrayStep) or self.step.tuning is None:
            return
        measures = self.step.measures(*batch.inputs)
        if measures:
            detail = "measuring kernels, once on this machine"
            yield ev.PhaseChanged(time.time(), self.group.index, "training", detail)
        for tried in self.step.choose_schedule(*batch.inputs):
            yield ev.PhaseChanged(time.time(), self.group.index, "training", f"tuning: {tried}")
        if measures:
            self.trainer.clock.cool()
            yield ev.PhaseChanged(time.time(), self.group.index, "training")

    def _measured(self, meter: Meter) -> Iterator[Event]:
        """What the array took, told; the plan of what is still to come is corrected by it."""
        self.meter = None
        peak, free = meter.peak_bytes + kept_bytes(self.step.weights()), free_bytes(self.settings.device)
        if isinstance(self.step, ArrayStep) and not can_record(self.settings.device, peak, free + meter.held_bytes):
            self.step.array.capture = False
        members = len(self.group.variants)
        planned = self.group.fixed_bytes + self.group.memory_bytes * members
        yield ev.MemoryMeasured(time.time(), self.group.index, members, peak, planned, free)
        before, self.group = self.trainer.records(), self.trainer.measured(self.group, peak, meter.held_bytes)
        if self.trainer.records() != before:
            yield ev.PlanMade(time.time(), self.trainer.records())

    def _differences(self) -> Iterator[Event]:
        """What comparing with plain modules has found since this was last asked."""
        if not isinstance(self.step, ArrayStep):
            return
        found = self.step.array.settings.differences
        for path in [path for path in found if path not in self.differences]:
            self.differences.add(path)
            yield ev.DifferenceFound(time.time(), self.group.index, path, found[path])

    def _beside(self, probe: SpeedProbe, batch: Batch) -> Iterator[Event]:
        """The steps of plain modules that are timed; they are let go where there is no room, or one of them raises."""
        try:
            done = probe.alone(*batch.first)
        except Exception:  # the array has taken this step, and nobody else needs what raised
            self.probe = None
            return
        if probe.tells:
            yield probe.event()
        if done:
            self.probe = None

    def _end_epoch(self) -> Iterator[Event]:
        """Means over the epoch, validation where it is due, and what follows for each member."""
        self.stage = "validating"
        failure = yield from self._ended_or_failed()
        while failure is not None and self.members.ids:
            failure = yield from self._ended_or_failed()
        self.stage, self.ending = "training", False

    def _ended_or_failed(self) -> Generator[Event, None, failures.Failure | None]:
        """The end of an epoch, or a member that raises in it and is left out."""
        try:
            yield from self._ended()
            return None
        except Exception as error:
            again = failures.of_nobody(self, error)
            failure = None if again else failures.failure_of(self, error)
            if failure is None and not again:
                raise
        if failure is None:
            return (yield from self._ended_or_failed())
        yield from failures.leave_out(self, failure)
        return failure

    def _ended(self) -> Iterator[Event]:
        found = {f"train_{name}": value for name, value in self.scores.means().items()}
        scales = self.step.scales()
        if scales is not None:
            found["train_loss_scale"] = scales.to(self.settings.score_dtype)
        cohorts = self.members.cohorts
        validates = {start: self._validates(start, places) for start, places in cohorts.items()}
        due = sorted(place for start, places in cohorts.items() if validates[start] for place in places)
        if due:
            found |= {f"val_{n}": v.to(self.settings.score_dtype) for n, v in (yield from self._evaluate()).items()}
        yield from self._differences()
        together = torch.stack(list(found.values()))[:, self.rows]
        values = {name: tuple(row) for name, row in zip(found, together.tolist(), strict=True)}
        for start, places in cohorts.items():
            yield self._done(start, places, values, validates[start])
        if due:
            yield from self._judged(values, due)
        if self.settings.member_seconds is not None:
            self.trainer.clock.tick()
        for variant, why in self.members.out_of_budget(self.settings, self.steps, self.trainer.clock.elapsed_s):
            yield from self.leave([variant], ev.COMPLETE, why, hold=slots.refills(self))

    def _judged(self, values: Mapping[str, Sequence[float]], due: Sequence[int]) -> Iterator[Event]:
        """What follows from a validation of the members at these places."""
        if self.judged < self.epoch:  # a run that was left among these events has done it
            events = list(self.members.take_epoch(self.epoch, values, self.step.weights(), due, self.rows))
            monitored = self.spread([-v if self.settings.maximize else v for v in values[self.settings.monitor]])
            if len(due) < len(monitored) and isinstance(self.step, ArrayStep):
                self.step.end_validation(monitored, [self.rows[place] for place in due])
            else:
                self.step.end_validation(monitored)
            self._keep_moments(due, values)
            if self.pulls is not None:
                self.pulls.judge(self.members.ids, values, due)
            replaced = population.replaced(self, values[self.settings.monitor])
            self.judged = self.epoch
            yield from [*events, *replaced]
        hold = slots.refills(self)
        for ids, state, reason in list(self.members.verdicts(self.epoch, values, due)):
            yield from self.leave(ids, state, reason, hold=hold)

    def _keep_moments(self, due: Sequence[int], values: Mapping[str, Sequence[float]]) -> None:
        """Keep the weights of members that were validated, before any of them is replaced or goes: of those that have
        reached a rung, and of those that may yet diverge or fail."""
        members = [self.members.active[place] for place in due]
        self.keep_last([self.members.ids[place] for place in due if math.isfinite(values["val_loss"][place])])
        reached = {member.id: self.epoch - member.start for member in members}
        rungs = {variant: epoch for variant, epoch in reached.items() if epoch in self.settings.rungs}
        if rungs:
            self.keep_weights(rungs)

    def _done(self, start: int, places: Sequence[int], values: Mapping[str, Sequence[float]], whole: bool) -> Event:
        """The end of an epoch of members that began together; `whole` says whether they were validated."""
        members = [self.members.active[place] for place in places]
        shown = {n: tuple(v[p] for p in places) for n, v in values.items() if whole or not n.startswith("val_")}
        step, ids = self.steps - members[0].first_step, tuple(member.id for member in members)
        return ev.EpochDone(time.time(), self.group.index, self.epoch - start, step, ids, shown)

    def _evaluate(self) -> Generator[Event, None, Scores]:
        total: Scores = {}
        sums: Scores = {}
        by_batches = [name for name, metric in self.metrics.items() if not metric.whole]
        kept = accumulators(by_batches, self.metrics, len(self.step), self.settings.device)
        whole = WholeSets(self.metrics, self.step, self.settings.device)
        samples = 0
        yield from featured_batches.attach(self)
        self.prepare()  # members may have left since the last batch
        self.held_out = 0
        for batch in self.source.validation():
            self.held_out += 1
            samples += batch.size
            scores = self.step.evaluate(*batch.inputs)
            whole.record(scores, batch)
            kept.record(scores, batch.y, batch.own)
            for name, value in scores.items():
                if name in kept.factories:
                    continue
                if name in self.metrics and self.metrics[name].finish is not None:
                    add(sums, name, value.double())
                else:
                    add(total, name, value * batch.size)
            if self.buffer is not None:
                yield TURN
        total = {name: value / samples for name, value in total.items()}
        total |= finished(sums, self.metrics) | kept.computed() | whole.computed()
        return {name: total[name] for name in self.validated}

    # Requests and members.

    def _requests(self) -> Iterator[Event]:
        passed_on, self.passed_on = self.passed_on, []
        for request in [*passed_on, *self.trainer.control.poll()]:
            yield from requests.answer(self, request)

    def _probe(self) -> SpeedProbe | None:
        many = slots.refills(self) and self.group.architectures > 1  # trials are short, and each would be built twice
        wanted = self.settings.measure and self.resume is None and not many
        places = [member.slot for member in self.members.active]
        return probe_of(self.step, self.group, places, self.rows, self.settings) if wanted else None
