"""How far a group is: its members, its place in the data, and what is told and kept of that."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hfta_nb import events as ev
from hfta_nb.augment import Augmenting
from hfta_nb.events import Event
from hfta_nb.memory import Meter
from hfta_nb.plan import Group
from hfta_nb.step import Step
from hfta_nb.train.batches import Batch, Batches, batches_of
from hfta_nb.train.members import Members
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.shared_batches import SharedBatches, Shelf

EVENT_INTERVAL_S = 0.2
"""Progress is told at most this often; nothing in the loop waits for a screen."""


class Progress:
    """A group that trains; see `GroupRun`, which trains it.

    Args:
        trainer: of the group.
        group: its variants.
        resume: the state to go on from; None to begin.
        shelf: where groups that take turns get their batches; None for batches of its own.

    Attributes:
        step, members, scores: once it is built.
        asked: requests that concern its members, which came while another group had its turn.
    """

    step: Step
    members: Members
    scores: EpochScores

    def __init__(
        self, trainer: Schedule, group: Group, resume: Mapping[str, Any] | None, shelf: Shelf | None = None
    ) -> None:
        self.trainer, self.group, self.settings = trainer, group, trainer.settings
        self.data = trainer.data
        self.batch_size = int(group.rows[0]["batch_size"])
        self.shelf = shelf
        self.source: Batches
        if shelf is None:
            self.source = batches_of(trainer.data, self.batch_size, self.settings.device, self.settings.dtype)
            self.augmenting = Augmenting(trainer.data, self.settings.device, self.settings.dtype)
        else:
            self.source, self.augmenting = SharedBatches(shelf), shelf.augmenting
        self.resume = resume
        self.asked: list[ev.Request] = []
        self.stage = "building"
        self.differences: set[str] = set()  # parts of the model that are known to have differed
        self.whole = True  # whether memory that runs out leaves all as it was before
        self.ending = False  # the epoch's steps are done, and what follows them is not
        self.judged = 0  # the last epoch that was validated and whose values have had their effect
        self.meter: Meter | None = None
        self.epoch, self.batch = 0, 0  # epochs done, and steps of the next
        self.held_out = 0  # batches of the validation that is going on
        self.steps = 0  # in all
        self.pass_, self.place = 0, 0  # passes through the data done, and batches of the next
        self._stream: Iterator[Batch] | None = None
        self._stream_seeds: list[int] = []
        self.told = 0  # steps of this epoch whose losses have been told
        self.samples = 0
        self.last_told = time.perf_counter()

    def forget(self) -> None:
        """Let go of everything that takes memory on the device; the run can't go on after this."""
        self.source.close()
        for name in ("step", "members", "scores", "probe", "resume", "meter", "_stream"):
            self.__dict__.pop(name, None)

    @property
    def length(self) -> int | None:
        """Steps of an epoch; None while that is not known."""
        return self.trainer.batches(self.group)

    # Telling.

    def tell(self, always: bool = False) -> Iterator[Event]:
        """The steps since the last time, unless that is too short ago; members whose loss is not finite leave."""
        now = time.perf_counter()
        end = self.batch
        if self.told >= end or not (always or now - self.last_told >= EVENT_INTERVAL_S):
            return
        block = self.scores.rows["loss"][self.told : end]  # reading it waits for the device, so it is read seldom
        finite = torch.isfinite(block).all(0).tolist()
        losses = block.mean(0).tolist()
        lost = [v for v, ok in zip(self.members.ids, finite, strict=True) if not ok]
        rate = self.samples / max(1e-9, now - self.last_told)
        clock = self.trainer.clock
        clock.tick()
        fresh = self.told
        waiting = min(1.0, self.source.waited_s / max(1e-9, now - self.last_told))
        self.told, self.samples, self.last_told, self.source.waited_s = end, 0, now, 0.0
        length = self.length
        yield ev.StepsDone(
            time.time(),
            self.group.index,
            self.steps,
            self.settings.epochs * length if length else 0,
            self.epoch + (min(1.0, end / length) if length else 0.0),
            rate,
            clock.elapsed_s,
            clock.remaining_s(self.work_left()),
            tuple(self.members.ids),
            tuple(losses),
            waiting,
        )
        if lost:
            bad = (~torch.isfinite(block)).int().argmax(0).tolist()
            at = {v: fresh + b for v, b in zip(self.members.ids, bad, strict=True)}
            of = f" of {length}" if length else ""
            for variant in lost:
                where = f"in epoch {self.epoch + 1}, step {at[variant] + 1}{of}"
                yield from self.leave([variant], ev.DIVERGED, f"training loss is not finite {where}")

    def work_left(self) -> float:
        """The work (see `Clock`) of all members that are still to train, from the present step on; NaN while that is
        not known."""
        trainer = self.trainer

        def work(group: Group, members: int, steps: float) -> float:
            length = trainer.batches(group)
            return math.nan if length is None else members * max(0.0, trainer.settings.epochs * length - steps)

        total = work(self.group, len(self.members.ids), self.steps)
        total += sum(work(*run.work()) for run in trainer.training if run is not self)
        for todo in trainer.waiting:
            if todo.end is not None:
                total += work(todo.group, len(todo.end.members), todo.end.epochs * (trainer.batches(todo.group) or 0))
            elif todo.run is not None:
                total += work(todo.group, len(todo.run["ids"]), float(todo.run["steps"]))
            else:
                total += work(todo.group, len(set(todo.group.ids) - trainer.early_stops), 0.0)
        return total

    def work(self) -> tuple[Group, int, int]:
        """The group, its members that still train, and their steps so far."""
        return self.group, len(self.members.ids) if hasattr(self, "members") else len(self.group.ids), self.steps

    # Members.

    def leave(self, ids: Sequence[int], state: str, reason: str, detail: str = "") -> Iterator[Event]:
        """Members end: the array goes on without them."""
        gone = [v for v in ids if v in self.members.ids]
        if not gone:
            return
        keep = [i for i, v in enumerate(self.members.ids) if v not in gone]
        if keep:
            self.step = self.step.select(keep)
            self.scores.select(keep)
        yield from self.members.leave(gone, keep, state, reason, detail)

    # Checkpoints.

    def save(self, done: bool = False) -> Iterator[Event]:
        """Keep how far the run is."""
        if self.trainer.save is None:
            return
        if done and self.shelf is not None:  # groups that take turns end one right after another: see `Turns`
            self.trainer.unsaved |= self.members.unsaved()
            self.members.saved()
            return
        path = self.trainer.checkpoint(self.group, None if done else self.state(), self.members.unsaved())
        self.members.saved()
        yield ev.CheckpointSaved(time.time(), self.group.index, self.epoch, path)

    def kept(self) -> tuple[Mapping[str, Any] | None, Mapping[int, Any]]:
        """See `Training`."""
        if not hasattr(self, "members"):
            return self.resume, {}
        unsaved = self.members.unsaved()
        self.members.saved()
        return self.state(), unsaved

    def state(self, ids: Sequence[int] | None = None) -> dict[str, Any]:
        """All that is needed to carry on: a tree of tensors and plain data; of these members alone, if given."""
        step, scores, kept = self.step, self.scores, list(self.members.ids)
        if ids is not None:
            places = [i for i, v in enumerate(kept) if v in ids]
            step, scores, kept = step.select(places), copy.deepcopy(scores), list(ids)
            scores.select(places)
        return {
            "epochs": self.settings.epochs,
            "epoch": self.epoch,
            "batch": self.batch,
            "steps": self.steps,
            "pass": self.pass_,
            "place": self.place,
            "told": self.told,
            "ending": self.ending,
            "judged": self.judged,
            "ids": kept,
            "scores": scores.state(),
            "members": self.members.state(ids),
            "step": step.state(),
        }
