"""The records of a group's members: which still train, how good each was at its best, and its weights then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hfta_nb.engine.array.access import is_held_once
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train.pending_group import WeightsOf, weights_at
from hfta_nb.train.plan import Group
from hfta_nb.train.settings import Settings


@dataclass
class MemberRecord:
    """What is noted of one member.

    Attributes:
        row: the values of its training axes.
        patient_value: what patience compares with: that of the latest improvement by more than `min_delta`.
        waited: validations since then.
        slot: its row in the tensors of best weights.
        unsaved: whether its best weights changed since they were last saved.
        held: whether they are in memory, saved or not.
        start: epochs that its array had done when it joined.
        first_step, first_pass: likewise optimizer steps, and passes through the data.
        begin_s: seconds that the run had trained.
    """

    id: int
    row: Mapping[str, Any]
    slot: int
    best_value: float = math.nan
    best_epoch: int = 0
    patient_value: float = math.nan
    waited: int = 0
    unsaved: bool = False
    held: bool = False
    start: int = 0
    first_step: int = 0
    first_pass: int = 0
    begin_s: float = 0.0

    def moved(self, epochs: int, steps: int, passes: int) -> MemberRecord:
        """The same in an array that has done so many more."""
        done = {"start": epochs, "first_step": steps, "first_pass": passes}
        return replace(self, **{name: getattr(self, name) + more for name, more in done.items()})


class Members:
    """The records of a group's members.

    Args:
        group: its variants.
        monitor: the metric that decides.
        maximize: whether more of it is better.
        patience: validations without improvement after which a member ends; None for never.
        narrowers: by member of the group, from its row of the weights to its own `state_dict`.
        every_epoch: whether every epoch is validated.
        min_delta: an improvement by no more than this does not count for patience.
    """

    def __init__(
        self,
        group: Group,
        monitor: str,
        maximize: bool,
        patience: int | None,
        unpads: Sequence[Callable[[Mapping[str, Tensor]], dict[str, Tensor]]],
        every_epoch: bool = True,
        min_delta: float = 0.0,
    ) -> None:
        pairs = zip(group.variants, group.rows, strict=True)
        self.all = [MemberRecord(v.id, row, i) for i, (v, row) in enumerate(pairs)]
        self.active = list(self.all)
        self.monitor, self.maximize, self.patience = monitor, maximize, patience
        self.unpads = unpads
        self.every_epoch, self.min_delta = every_epoch, min_delta
        self.best: dict[str, Tensor] = {}
        self.departed: dict[WeightsOf, dict[str, Tensor]] = {}  # of members no longer here, and of moments gone by

    @property
    def ids(self) -> list[int]:
        """Variants that still train, in the order of the array."""
        return [m.id for m in self.active]

    @property
    def cohorts(self) -> dict[int, list[int]]:
        """By the epoch at which they joined, the places of those that still train: the first to join first."""
        found: dict[int, list[int]] = {}
        for place, member in sorted(enumerate(self.active), key=lambda pair: pair[1].start):
            found.setdefault(member.start, []).append(place)
        return found

    def start(self) -> Iterator[Event]:
        for member in self.active:
            yield ev.MemberChanged(time.time(), member.id, ev.RUNNING)

    def take_epoch(
        self,
        epoch: int,
        values: Mapping[str, Sequence[float]],
        weights: Mapping[str, Tensor],
        due: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
    ) -> Iterator[Event]:
        """Note an epoch's values; keep the weights of those that were never better.

        Args:
            epoch: of the array.
            due: places of the members that were validated; all without.
            rows: of the members in `weights`; their places without.
        """
        places = range(len(self.active)) if due is None else due
        found = {place: values[self.monitor][place] for place in places}
        better = {p: math.isfinite(v) and self._better(v, self.active[p].best_value) for p, v in found.items()}
        improved = [place for place, yes in better.items() if yes]
        if improved:  # before its record: where this needs more memory than there is, the epoch's end comes again
            from_ = improved if rows is None else [rows[place] for place in improved]
            self._keep(weights, from_, [self.active[place].slot for place in improved])
        for place, value in found.items():
            member = self.active[place]
            if better[place]:
                member.best_value, member.best_epoch = value, epoch - member.start
                member.unsaved = member.held = True
            if math.isfinite(value) and self._better(value, member.patient_value, self.min_delta):
                member.patient_value, member.waited = value, 0
            else:
                member.waited += 1
        for place in improved:
            member = self.active[place]
            yield ev.MemberImproved(time.time(), member.id, member.best_epoch, self.monitor, member.best_value)

    def verdicts(
        self, epoch: int, values: Mapping[str, Sequence[float]], due: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], str, str]]:
        """Members that end with this epoch of the array, each with its state and why; see `take_epoch`."""
        places = list(range(len(self.active)) if due is None else due)
        for member, loss in [(self.active[place], values["val_loss"][place]) for place in places]:
            if not math.isfinite(loss):
                why = f"validation loss is not finite after epoch {epoch - member.start}"
                yield [member.id], ev.DIVERGED, why
            elif self.patience is not None and member.waited >= self.patience:
                what = "epochs" if self.every_epoch else "validations"
                by = f" by more than {self.min_delta:g}" if self.min_delta else ""
                why = f"no better {self.monitor}{by} for {member.waited} {what}, best at epoch {member.best_epoch}"
                yield [member.id], ev.COMPLETE, why

    def out_of_budget(self, settings: Settings, steps: int, elapsed_s: float) -> Iterator[tuple[int, str]]:
        """Members that have had all the steps or seconds that they may have, each with why.

        Args:
            steps: of the array.
            elapsed_s: seconds of training of the run.
        """
        most, most_s = settings.member_steps, settings.member_seconds
        for member in [] if most is None and most_s is None else list(self.active):
            own, own_s = steps - member.first_step, elapsed_s - member.begin_s
            if most is not None and own >= most:
                yield member.id, f"{own} steps, of {most} that it may have"
            elif most_s is not None and own_s >= most_s:
                yield member.id, f"{own_s:.0f} seconds, of {most_s:g} that it may have"

    def leave(
        self, gone: Sequence[int], keep: Sequence[int], state: str, reason: str, detail: str = ""
    ) -> Iterator[Event]:
        """Members end; `keep` are the places of the others."""
        self.active = [self.active[i] for i in keep]
        for variant in gone:
            yield ev.MemberChanged(time.time(), variant, state, reason, detail)

    def clone(
        self, place: int, variant: int, row: Mapping[str, Any], unpad: Callable[[Mapping[str, Tensor]], Any]
    ) -> None:
        """One more member, beside the one at this place; its record begins anew."""
        record = replace(self.active[place], id=variant, row=row, slot=len(self.all), best_value=math.nan)
        record.best_epoch, record.patient_value, record.waited = 0, math.nan, 0
        record.unsaved = record.held = False
        self.all.append(record)
        self.active.append(record)
        self.unpads = [*self.unpads, unpad]
        self.best = {name: torch.cat([v, torch.zeros_like(v[:1])]) for name, v in self.best.items()}

    def change(self, variant: int, values: Mapping[str, Any]) -> None:
        """A member trains with other values from now on."""
        member = next(m for m in self.active if m.id == variant)
        member.row = {name: values.get(name, value) for name, value in member.row.items()}

    def drop(self, variant: int) -> None:
        """Go on as if this one, which trains no more, had never been here."""
        kept = [m for m in self.all if m.id != variant]
        slots = [m.slot for m in kept]
        self.all, self.unpads = kept, [self.unpads[slot] for slot in slots]
        self.best = {name: value[slots] for name, value in self.best.items()}
        for slot, member in enumerate(kept):
            member.slot = slot

    def regrouped(
        self, group: Group, unpads: Sequence[Any], records: Mapping[int, MemberRecord], begins: MemberRecord
    ) -> Members:
        """The records of an array with other members: those that still train keep theirs.

        Best weights that nobody has saved yet are kept until somebody does.

        Args:
            group, narrowers: of the new array.
            records: by variant, those of members that have begun elsewhere.
            begins: the record of one that begins.
        """
        made = Members(group, self.monitor, self.maximize, self.patience, unpads, self.every_epoch, self.min_delta)
        made.departed = self.unsaved()
        known = {member.id: member for member in self.active} | dict(records)
        made.all = [
            replace(known.get(one.id, begins), id=one.id, row=one.row, slot=one.slot, unsaved=False, held=False)
            for one in made.all
        ]
        made.active = list(made.all)
        return made

    def keep(self, at: Mapping[int, int | str], weights: Mapping[str, Tensor], rows: Sequence[int]) -> None:
        """Keep weights of members that still train until they are saved; they are copied to the host.

        Args:
            at: by variant, the moment that they are kept of; see `weights_at`.
            weights: of the step.
            rows: of the members in them.
        """
        members = [(member, row) for member, row in zip(self.active, rows, strict=True) if member.id in at]
        chosen = [row for _, row in members]
        # One copy to the host for all members of an array, not one for each of them.
        there = {name: value.detach()[chosen].to("cpu") for name, value in weights.items()}
        for place, (member, _) in enumerate(members):
            own = self.unpads[member.slot]({name: value[place] for name, value in there.items()})
            name = weights_at(member.id, at[member.id])
            self.departed[name] = {k: v.detach().to("cpu", copy=True) for k, v in own.items()}

    def take_weights(self, weights: Mapping[WeightsOf, dict[str, Tensor]]) -> None:
        """Keep weights of members that train elsewhere until they are saved."""
        self.departed |= weights

    def unsaved(self, held: bool = False) -> dict[WeightsOf, dict[str, Tensor]]:
        """Weights that are not saved yet: the best ones that have changed, and those of `keep`.

        Args:
            held: the best ones that were saved as well, as far as they are still in memory.
        """
        due = [m for m in self.all if m.unsaved or (held and m.held)]
        rows = {m.id: (m.slot, {k: v[m.slot] for k, v in self.best.items()}) for m in due}
        return self.departed | {variant: self.unpads[slot](row) for variant, (slot, row) in rows.items()}

    def saved(self) -> None:
        self.departed = {}
        for member in self.all:
            member.unsaved = False

    def state(self, ids: Sequence[int] | None = None) -> dict[str, Any]:
        """The records as plain data, of these variants alone where some are named; `unsaved` hands out weights."""
        kept = [m for m in self.all if ids is None or m.id in ids]
        pages = [[m.id, repr(m.best_value), m.best_epoch, m.waited] for m in kept]
        begun = [[m.start, m.first_step, m.first_pass, m.begin_s] for m in kept]
        patient = [repr(m.patient_value) for m in kept]
        return {"pages": pages, "begun": begun, "patient": patient}

    def load(self, state: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Take what `state` gave, with these variants still training."""
        for member, (_, value, epoch, waited) in zip(self.all, state["pages"], strict=True):
            member.best_value, member.best_epoch, member.waited = float(value), epoch, waited
            member.patient_value = member.best_value
        for member, patient in zip(self.all, state.get("patient", ()), strict=False):
            member.patient_value = float(patient)
        for member, begun in zip(self.all, state.get("begun", ()), strict=False):  # earlier versions: all at once
            member.start, member.first_step, member.first_pass, member.begin_s = *map(int, begun[:3]), float(begun[3])
        self.active = [m for m in self.all if m.id in ids]

    def _better(self, value: float, best: float, by: float = 0.0) -> bool:
        return math.isnan(best) or (value - by > best if self.maximize else value + by < best)

    @torch.no_grad()
    def _keep(self, weights: Mapping[str, Tensor], places: list[int], slots: list[int]) -> None:
        for name, value in weights.items():
            if name not in self.best:
                once = is_held_once(value)  # frozen, so that the weights of any time are these
                shape = len(self.all), *value.shape[1:]
                self.best[name] = value[0].expand(shape) if once else value.new_zeros(shape)
            best = self.best[name]
            if is_held_once(best):
                if is_held_once(value) and value.data_ptr() == best.data_ptr():
                    continue
                best = self.best[name] = best.contiguous()
            if best.shape[1:] != value.shape[1:]:  # states beside the weights, of as many bytes as they need
                most = max(best.shape[1], value.shape[1])
                value, self.best[name] = (functional.pad(v, (0, most - v.shape[1])) for v in (value, best))
            self.best[name][slots] = value[places]


def kept_bytes(weights: Mapping[str, Tensor]) -> int:
    """The memory of best weights, beside that of the array."""
    return sum(v.numel() * v.element_size() for v in weights.values() if not is_held_once(v))


def begun(state: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """By variant, the epoch and the step of its array with which it began, as a `Members.state` says; earlier versions
    kept none, as all began at once."""
    variants = [record[0] for record in state["pages"]]
    begun = state.get("begun") or [(0, 0)] * len(variants)
    return {variant: (int(first[0]), int(first[1])) for variant, first in zip(variants, begun, strict=False)}
