"""What a pool knows of its arrays: their turns and numbers, how far they are, and the checkpoint of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hfta_nb.data import AnyData
from hfta_nb.errors import StoreError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Add, Control
from hfta_nb.train.pending_group import Ends, PendingGroup, Save, WeightsOf
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.settings import Settings
from hfta_nb.workers.pools.reports import Saved
from hfta_nb.workers.pools.worker_turns import Turn, estimated_s


class Books(Schedule):
    """The arrays of a run that workers train; see `WorkerPool`, which tells workers what to train.

    Args:
        settings, groups, control, save, resume, ends, take: see `Schedule`.
        checkpoint_every_s: seconds between two checkpoints.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[Group],
        control: Control,
        save: Save | None,
        resume: Mapping[str, Any] | None,
        checkpoint_every_s: float,
        ends: Ends | None,
        take: Callable[[Add], str] | None,
    ) -> None:
        how: dict[str, Any] = {"checkpoint_every_s": checkpoint_every_s, "ends": ends, "take": take}
        super().__init__(settings, groups, control, save, resume, **how)
        self._turns: dict[str, Turn] = {}
        self._weights: dict[WeightsOf, Mapping[str, Tensor]] = {}  # those that are not kept yet
        self._best: dict[WeightsOf, Mapping[str, Tensor]] = {}  # the best ones of arrays that train, kept or not
        self._next_index = self.free_index

    def placed(self) -> AnyData:
        return self.settings.data  # workers place it on their devices

    def _timed(self, turn: Turn, event: ev.StepsDone, slots: int) -> ev.StepsDone:
        """Progress of one group, with the time of all, of which `slots` train at a time."""
        turn.remaining_s = event.remaining_s
        left = len(event.variants) * (event.steps_total - event.step) if event.steps_total else math.nan
        turn.pace = left / event.remaining_s if event.remaining_s > 0 else math.nan
        self.clock.tick()
        remaining_s = estimated_s(turn, list(self._turns.values()), self._work, slots)
        return replace(event, elapsed_s=self.clock.elapsed_s, remaining_s=remaining_s)

    def _work(self, pending: PendingGroup) -> float:
        length = self.batches(pending.group) or math.nan
        run = pending.run or {"ids": pending.group.ids, "steps": 0}
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
        indices = [turn.numbered(pending.group.index, self._free) for pending in saved.pending]
        turn.pending = [PendingGroup(groups[i], pending.run) for i, pending in zip(indices, saved.pending, strict=True)]
        self._weights |= saved.weights
        self._best |= saved.weights
        for end in saved.ended:
            if self.ends is not None and end.file in saved.ends:
                index = turn.numbered(end.array, self._free)
                file = self.ends.write_end(index, saved.ends[end.file])
                self.ended[index] = replace(end, array=index, file=file)

    def _kept(self, event: ev.CheckpointSaved) -> ev.CheckpointSaved:
        """Write all checkpoints to the store."""
        pending = [pending for turn in self._turns.values() for pending in turn.pending]
        try:
            path = self.keep([*pending, *self.waiting], self._weights)
        except StoreError:  # what was saved before may be gone as well: whoever keeps these elsewhere needs all
            self.unsaved |= self._best
            raise
        self._weights = {}
        live = {id for turn in self._turns.values() for group in turn.arrays for id in group.ids}
        self._best = {key: one for key, one in self._best.items() if key in live}
        return replace(event, path=path)

    def _free(self) -> int:
        self._next_index = max(self._next_index, self.free_index) + 1
        return self._next_index - 1
