"""Groups trained one after another, or in turns where they read the same stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator

from hfta_nb.data import Stream
from hfta_nb.errors import DataError, MemberError, StoreError, out_of_memory
from hfta_nb.models.recipes.preserve_rng import apart as set_apart
from hfta_nb.records.events import FAILED, WAITING, Event, MemberChanged, PlanMade, Stop
from hfta_nb.train import failures, requests
from hfta_nb.train.capacity import EASY, fit
from hfta_nb.train.group_run import TURN, GroupRun
from hfta_nb.train.group_state import position_of
from hfta_nb.train.joining import gathered
from hfta_nb.train.memory import free_bytes
from hfta_nb.train.pending_group import PendingGroup
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.shared_batches import BatchBuffer
from hfta_nb.train.split_on_oom import split


class Trainer(Schedule):
    """Trains groups one after another, or in turns where they read the same stream; iterate it.

    See `Schedule` for the arguments.
    """

    def __iter__(self) -> Iterator[Event]:
        self.clock.skip()
        while True:
            stop = yield from self._stop_requested()
            if not self.waiting and self.requested.paused and not stop:
                yield from requests.wait_for_paused(self)
                if not self.stopped:
                    continue
            if not self.waiting and not self.requested.paused:
                yield from requests.orphaned(self)
                return
            if stop or self.stopped:
                yield from self._stop()
                return
            if not (self.waiting[0].begun or self._wanted(self.waiting[0].group)):
                self.waiting.popleft()
                continue
            pending = self.opened(gathered(self, self.waiting.popleft()))
            if pending.run is None and not pending.group.fitted:
                found = yield from self._fitted(pending.group)
                self.waiting.extendleft(map(PendingGroup, reversed(found)))
                self.clock.skip()
                continue
            others = yield from peers(self, pending)
            yield from Turns(self, [pending, *others]).events() if others else self._train(pending)
            if self.stopped:
                return

    def _wanted(self, group: Group) -> bool:
        """Whether one of an array's members is still to begin: none of the others is built for nothing."""
        return not set(group.ids) <= self.early_stops | self.requested.deleted

    def _stop_requested(self) -> Generator[Event, None, bool]:
        """Whether the run is to stop before another array is built, which answers most other requests."""
        polled = self.control.poll()
        for request in polled:
            if request != Stop():
                yield from requests.answer_between(self, request)
        return Stop() in polled

    def _stop(self) -> Iterator[Event]:
        self.stop()
        yield from self.save_after(self.waiting[0].group if self.waiting else self.arrays[0], {})

    def _train(self, pending: PendingGroup) -> Iterator[Event]:
        run = GroupRun(self, pending.group, pending.run)
        try:
            yield from set_apart(run.events(), self.settings.repeats)
            return
        except Exception as error:
            failure = (
                failures.unbuilt(self, pending.group, error)
                if run.stage == "building" and pending.run is None
                else None
            )
            if failure is None and not (out_of_memory(error) and run.whole):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        # Here the error is gone, and the tensors of its frames with it.
        if failure is None:
            yield from split(self, run.group, run.stage, *run.to_host(), reason)
        else:
            yield from failures.build_without(self, run.group, failure)

    def _fitted(self, group: Group) -> Generator[Event, None, list[Group]]:
        """The arrays to train in a group's place, first of all; without a member that can't be tried."""
        try:
            return (yield from self.fitted(group))
        except MemberError as error:
            failure = failures.unbuilt(self, group, error)
            if failure is None:
                raise
        yield from failures.build_without(self, group, failure)
        return []

    # The arrays.

    def fitted(self, group: Group, measure: bool = False) -> Generator[Event, None, list[Group]]:
        """Find out how many members train together, and put the arrays that this makes in the group's place.

        Args:
            group: of `arrays`.
            measure: measure also where it is plain that all members fit.

        Returns:
            The arrays.
        """
        found: list[Group] = yield from set_apart(fit(self, group, measure))
        before = self.records()
        self.replace(group, found)
        if self.records() != before:
            yield PlanMade(time.time(), self.records())
        return found


# Arrays that take turns: they do not fuse, and each batch is read once for all of them.


def peers(trainer: Trainer, first: PendingGroup) -> Generator[Event, None, list[PendingGroup]]:
    """Take those out of the waiting arrays that can take turns with the one that is next.

    They read the same batches in the same order, are equally far, and fit into the device's memory together.

    Args:
        trainer: of the arrays.
        first: the array that is next, fitted.
    """
    if not _shares(trainer, first):
        return []
    room = free_bytes(trainer.settings.device) - _bytes(first.group)
    found: list[PendingGroup] = []
    passed: deque[PendingGroup] = deque()
    while trainer.waiting:
        other = trainer.waiting.popleft()
        if not (_shares(trainer, other) and _together(trainer, first, other) and room > 0):
            passed.append(other)
        elif not (other.begun or other.group.fitted):
            parts = yield from trainer._fitted(other.group)
            trainer.waiting.extendleft(map(PendingGroup, reversed(parts)))
        elif _bytes(other.group) > room:
            passed.append(other)
        else:
            room -= _bytes(other.group)
            found.append(trainer.opened(other))
    trainer.waiting.extend(passed)
    return found


def _shares(trainer: Schedule, pending: PendingGroup) -> bool:
    settings, group = trainer.settings, pending.group
    data = trainer.data
    usable = settings.share_stream and isinstance(data, Stream) and not data.held.varies
    return usable and not group.serial and group.index not in trainer.alone and len(_seeds(trainer, group)) == 1


def _seeds(trainer: Schedule, group: Group) -> set[int]:
    seeds = (row["data_seed"] for row in group.rows)
    return {trainer.settings.seed if seed is None else int(seed) for seed in seeds}


def _together(trainer: Schedule, a: PendingGroup, b: PendingGroup) -> bool:
    """Whether two arrays read the same batches, and are at the same one, or at its neighbour (an interrupted run)."""
    same = a.group.rows[0]["batch_size"] == b.group.rows[0]["batch_size"]
    if not same or _seeds(trainer, a.group) != _seeds(trainer, b.group):
        return False
    if b.end is not None:
        return position_of(a.run) == (b.end.epochs, 0, 0)
    steps = [0 if pending.run is None else int(pending.run["steps"]) for pending in (a, b)]
    return abs(steps[0] - steps[1]) <= 1


def _bytes(group: Group) -> int:
    """The memory that an array takes; an estimate counts as often as where a single array is not measured for it."""
    known = group.fixed_bytes + len(group.variants) * group.memory_bytes
    return known if group.measured else EASY * known


class _Slot:
    """An array that takes turns, and the rest of its work."""

    def __init__(self, trainer: Schedule, pending: PendingGroup, buffer: BatchBuffer) -> None:
        self.pending = pending
        self.run = GroupRun(trainer, pending.group, pending.run, buffer)
        self.events = set_apart(self.run.events(), trainer.settings.repeats)


class Turns:
    """Trains several arrays at the same time; iterate `events`.

    The array that is furthest behind has its turn: one batch. Where one raises or does not fit beside the others, it
    leaves alone, and trains when the others are done; they don't notice.

    Args:
        trainer: of the arrays.
        pending_groups: the arrays and how far they are.
    """

    def __init__(self, trainer: Schedule, pending_groups: list[PendingGroup]) -> None:
        s, first = trainer.settings, pending_groups[0].group
        assert isinstance(trainer.data, Stream)  # see `peers`
        (seed,) = _seeds(trainer, first)
        self.trainer = trainer
        how = int(first.rows[0]["batch_size"]), s.device, s.dtype, seed, s.validation_batch_size
        self.buffer = BatchBuffer(trainer.data, *how)
        self.slots = [_Slot(trainer, pending, self.buffer) for pending in pending_groups]
        self._ended: tuple[Group, tuple[int, float, int]] | None = None  # the latest that is done, not in a checkpoint

    def events(self) -> Iterator[Event]:
        """The work of all arrays."""
        trainer = self.trainer
        try:
            while self.slots:
                slot = min(self.slots, key=lambda slot: slot.run.position)
                if self._ended is not None and slot.run.position >= self._ended[1]:
                    yield from self._keep()
                trainer.training = [slot.run for slot in self.slots]
                yield from self._turn(slot)
                if trainer.stopped:
                    return
            trainer.training = []
            yield from self._keep()
        finally:
            trainer.training = []
            for slot in self.slots:
                slot.events.close()
            self.buffer.close()

    def _turn(self, slot: _Slot) -> Iterator[Event]:
        try:
            for event in slot.events:
                if event is TURN:
                    return
                yield event
        except Exception as error:
            last = len(self.slots) == 1
            if isinstance(error, DataError | StoreError) or (last and not out_of_memory(error)):
                raise  # the others would meet it as well; or there are none
            self._remove(slot)
            failed = self._failed(slot, error)
        else:
            position = slot.run.position
            if not self.trainer.stopped:
                self._remove(slot)
                self._ended = slot.run.group, position
            return
        # Here the error is gone, and the tensors of its frames with it.
        yield from failed

    def _remove(self, slot: _Slot) -> None:
        self.slots.remove(slot)
        self.trainer.training = [slot.run for slot in self.slots]

    def _failed(self, slot: _Slot, error: Exception) -> Iterator[Event]:
        """What becomes of an array that raised, of which nothing is left here but its words."""
        run, trainer = slot.run, self.trainer
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fresh = run.stage == "building"
        failure = failures.unbuilt(trainer, run.group, error) if fresh and slot.pending.run is None else None
        if failure is not None:
            return failures.build_without(trainer, run.group, failure)
        if not (run.whole or fresh):
            noted = failures.noted(trainer, run.members.ids[0], error)
            return self._lost(run, noted)
        return self._alone(run, f"{type(error).__name__}: {reason}")

    def _alone(self, run: GroupRun, reason: str) -> Iterator[Event]:
        """The array goes on from where it is when the others are done."""
        trainer, group = self.trainer, run.group
        ids, state, unsaved = run.to_host()
        trainer.take_weights(unsaved)
        trainer.alone.add(group.index)
        trainer.put_first([group], [state])
        for variant in ids:
            yield MemberChanged(time.time(), variant, WAITING, f"for the arrays beside array {group.index}: {reason}")
        yield from trainer.save_after(group, {}, 0 if state is None else int(state["epoch"]))

    def _lost(self, run: GroupRun, failure: failures.Failure) -> Iterator[Event]:
        """The array can't go on: its optimizers had stepped, but not all of the step was done."""
        ids, why = list(run.members.ids), failure.reason
        self.trainer.take_weights(run.members.unsaved())
        for variant in ids:
            yield MemberChanged(time.time(), variant, FAILED, why, failure.detail)
        self._ended = run.group, run.position
        run.forget()

    def _keep(self) -> Iterator[Event]:
        """A checkpoint without the arrays that are done; those that end with the same batch are in one."""
        ended, self._ended = self._ended, None
        if ended is not None:
            group, (epoch, *_) = ended
            yield from self.trainer.save_after(group, {}, epoch)
