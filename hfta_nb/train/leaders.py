"""Members of an array that are pulled toward the best of them, as `hfta_nb.Leader` says."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.optim.leaders import Places, centered, pulled
from hfta_nb.records import events as ev
from hfta_nb.train.settings import Pulling
from hfta_nb.train.step import ArrayStep, Step


class Pulls:
    """The pulls of an array: which are due, and who has led them.

    A pull follows a step without reading anything back: who leads is counted on the device, and read at the end of the
    epoch, or where members come or go.

    Args:
        how: members are pulled.

    Attributes:
        values: by variant, the metric of its latest validation, where that decides.
        center: by parameter ``[groups, *shape]``; None before the first pull, and where members have leaders.
        counts: by group and variant, the pulls of this epoch that it has led; the last group is all together.
        leads: by group, the variant that has led most of the last epoch's pulls.
    """

    def __init__(self, how: Pulling) -> None:
        self.how = how
        self.values: dict[int, float] = {}
        self.center: dict[str, Tensor] | None = None
        self.counts: dict[tuple[int, int], int] = {}
        self.leads: dict[int, int] = {}
        self._key: tuple[Any, ...] = ()
        self._ids: list[int] = []
        self._places: Places | None = None
        self._led: Tensor | None = None  # [groups and all, K], on the device
        self._standing: Tensor | None = None  # of `values`, there

    def due(self, steps: int) -> bool:
        """Whether there is a pull after so many steps."""
        return steps % self.how.every == 0

    def pull(
        self, step: Step, rows: Sequence[int], slots: Mapping[int, int], scores: Mapping[str, Tensor], batch: int
    ) -> None:
        """Pull the members that train.

        Args:
            step: of their array; plain modules are not pulled.
            rows: of the members in the step.
            slots: by variant that trains, in order of the rows, its number in the array.
            scores: of the steps of the epoch under way ``[steps, M]``.
            batch: how many there have been.
        """
        how = self.how
        if not isinstance(step, ArrayStep):
            return
        places = self._placed(step, rows, slots)
        if how.metric is None:
            self.center = centered(step.array, self.center, places, how.pull)
            return
        standing = self._standing_of(how.metric, scores, batch, len(step), rows)
        leaders = pulled(step.array, standing, places, how.pull, how.global_pull)
        assert self._led is not None  # as `_placed` has left it
        self._led.scatter_add_(1, leaders.clamp(min=0).unsqueeze(1), (leaders >= 0).long().unsqueeze(1))

    def judge(self, ids: Sequence[int], values: Mapping[str, Sequence[float]], due: Sequence[int]) -> None:
        """Take in a validation of those of these variants that are at the places `due`."""
        metric = self.how.metric
        if metric is not None and metric in values:
            self.values |= {ids[place]: values[metric][place] for place in due}
            self._standing = None

    def end_epoch(self, epoch: int, steps: int) -> list[ev.MemberEdited]:
        """Who leads from now on: the members that have led most pulls of an epoch, as far as it was others before."""
        self._count()
        found = []
        for group in range(self.how.groups + 1):
            led = {variant: count for (own, variant), count in self.counts.items() if own == group}
            if not led or (group == self.how.groups and not self.how.global_pull):
                continue
            first = max(led, key=lambda variant: (led[variant], -variant))
            if self.leads.get(group) != first:
                self.leads[group] = first
                of = f"{led[first]} of {sum(led.values())} pulls in epoch {epoch}"
                changes: dict[str, ev.Json] = {"leads": self._name(group)}
                where = time.time(), first, "led", None, True, epoch, steps
                found.append(ev.MemberEdited(*where, changes, f"has led {of}"))
        self.counts = {}
        return found

    # State.

    def state(self, ids: Sequence[int]) -> dict[str, Any]:
        """All that is needed to carry on with these members."""
        self._count()
        return {
            "values": [[v, repr(value)] for v, value in self.values.items() if v in ids],
            "center": dict(self.center or {}),
            "counts": [[*key, count] for key, count in self.counts.items()],
            "leads": [list(pair) for pair in self.leads.items()],
        }

    def load_state(self, state: Mapping[str, Any] | None, device: torch.device) -> None:
        """Take what `state` gave; nothing of an array that had no leaders."""
        if state is None:
            return
        self.values = {int(v): float(value) for v, value in state["values"]}
        self.center = {k: v.to(device, copy=True) for k, v in state["center"].items()} or None
        self.counts = {(int(group), int(v)): int(count) for group, v, count in state["counts"]}
        self.leads = {int(group): int(v) for group, v in state["leads"]}

    # On the device.

    def _placed(self, step: ArrayStep, rows: Sequence[int], slots: Mapping[int, int]) -> Places:
        """The members that train, in the rows that they have now."""
        key = len(step), list(rows), slots
        if self._places is None or key != self._key:
            self._count()
            groups = [slot % self.how.groups for slot in slots.values()]
            self._places = Places.of(step.array, groups, rows, self.how.groups)
            shape = self.how.groups + 1, len(groups)
            self._led = torch.zeros(shape, dtype=torch.int64, device=self._places.group.device)
            self._key, self._ids, self._standing = key, list(slots), None
        return self._places

    def _standing_of(
        self, metric: str, scores: Mapping[str, Tensor], batch: int, members: int, rows: Sequence[int]
    ) -> Tensor:
        """Per row of the step, what decides; lowest best."""
        split, _, name = metric.partition("_")
        if split == "train":
            mean = scores[name][max(0, batch - self.how.every) : batch].mean(0)
            return -mean if self.how.maximize else mean
        if self._standing is None:
            found = [math.inf] * members
            for row, variant in zip(rows, self._ids, strict=True):
                value = self.values.get(variant, math.nan)
                found[row] = -value if self.how.maximize else value
            self._standing = torch.tensor(found, dtype=torch.float64, device=scores["loss"].device)
        return self._standing

    def _count(self) -> None:
        """Read who has led, since this was last asked."""
        if self._led is None:
            return
        for group, led in enumerate(self._led.tolist()):
            for variant, count in zip(self._ids, led, strict=True):
                if count:
                    self.counts[group, variant] = self.counts.get((group, variant), 0) + count
        self._led.zero_()

    def _name(self, group: int) -> str:
        return "all" if self.how.groups in (1, group) else f"group {group}"
