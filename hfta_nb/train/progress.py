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
from hfta_nb.train.batches import Batch, batches_of
from hfta_nb.train.members import Members
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.speed import SpeedProbe

EVENT_INTERVAL_S = 0.2
"""Progress is told at most this often; nothing in the loop waits for a screen."""


class Progress:
    """A group that trains; see `GroupRun`, which trains it.

    Attributes:
        step, members, scores: once it is built.
    """

    step: Step
    members: Members
    scores: EpochScores

    def __init__(self, trainer: Schedule, group: Group, resume: Mapping[str, Any] | None) -> None:
        self.trainer, self.group, self.settings = trainer, group, trainer.settings
        self.data = trainer.data
        self.batch_size = int(group.rows[0]["batch_size"])
        self.source = batches_of(trainer.data, self.batch_size, self.settings.device, self.settings.dtype)
        self.augmenting = Augmenting(trainer.data, self.settings.device, self.settings.dtype)
        self.resume = resume
        self.stage = "building"
        self.differences: set[str] = set()  # parts of the model that are known to have differed
        self.whole = True  # whether memory that runs out leaves all as it was before
        self.ending = False  # the epoch's steps are done, and what follows them is not
        self.judged = 0  # the last epoch that was validated and whose values have had their effect
        self.meter: Meter | None = None
        self.probe: SpeedProbe | None = None
        self.epoch, self.batch = 0, 0  # epochs done, and steps of the next
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

    @property
    def budget(self) -> int:
        """Epochs that the members train together; some may have more."""
        return min((self.trainer.budget(v) for v in self.members.ids), default=self.settings.epochs)

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
            self.budget * length if length else 0,
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
        for todo in trainer.waiting:
            if todo.end is not None:
                total += work(todo.group, len(todo.end.members), todo.end.epochs * (trainer.batches(todo.group) or 0))
            elif todo.run is not None:
                total += work(todo.group, len(todo.run["ids"]), float(todo.run["steps"]))
            else:
                total += work(todo.group, len(set(todo.group.ids) - trainer.early_stops), 0.0)
        return total

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
        path = self.trainer.checkpoint(self.group, None if done else self.state(), self.members.unsaved())
        self.members.saved()
        yield ev.CheckpointSaved(time.time(), self.group.index, self.epoch, path)

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
