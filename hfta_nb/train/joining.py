"""Which of the variants that wait can train in an array with others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.errors import HftaError
from hfta_nb.search.grid import Variant
from hfta_nb.train.pending_group import PendingGroup
from hfta_nb.train.plan import Group
from hfta_nb.train.plan.grouping import Draft
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.settings import Settings


class Joiner:
    """Finds variants that fuse with the members of an array, among those that wait.

    Args:
        trainer: whose variants wait.
        group: the array's.
        members: of its variants, those that go on.
        free: the most that may join.

    Attributes:
        found: those that may join, each with the array in which it was to train.
    """

    def __init__(self, trainer: Schedule, group: Group, members: Sequence[int], free: int) -> None:
        self.trainer, self.free = trainer, free
        self._group, self._members = group, list(members)
        self.begin()

    def begin(self) -> None:
        """Look from the start: nobody has been found yet."""
        self.found: list[tuple[PendingGroup, Variant]] = []
        self._seen: set[int] = set()
        self._made: Draft | None = None

    @property
    def _whole(self) -> Draft:
        """The members and those that may join; made where somebody waits, as the members are looked at for it."""
        if self._made is None:
            padding = self.trainer.settings.padding
            members = self._members or self._group.ids  # of an array that all have left, the last say what fuses
            part = self._group.part(members, self._group.index, self._group.reason)
            self._made, *others = [self._draft(*one) for one in _triples(part)]
            for other in others:
                self._made.apart(other, padding)  # finds out how they fit
                self._made.join(other, padding)
        return self._made

    def _draft(self, variant: Variant, row: Mapping[str, Any], arguments: Mapping[str, Any]) -> Draft:
        return Draft.known(variant, dict(row), dict(arguments), self.trainer.settings.family, self.trainer.builder)

    def _add(self, variant: Variant, row: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        """Let a variant join, if it can."""
        padding, whole = self.trainer.settings.padding, self._whole
        try:
            draft = self._draft(variant, row, arguments)
            if whole.apart(draft, padding) is not None:
                return False
        except HftaError:  # which is told where it trains
            return False
        whole.join(draft, padding)
        return True

    @staticmethod
    def room(settings: Settings, group: Group) -> int:
        """Members that an array may have."""
        slots = sys.maxsize if settings.slots is None else settings.slots
        return min(slots, group.capacity) if group.capacity else slots

    def look(self) -> int:
        """Take in what has come to wait; how many may join."""
        withheld = _withheld(self.trainer)
        for pending in self.trainer.waiting:
            group = pending.group
            if pending.begun or group.serial or group.index == self._group.index:
                continue
            for variant, row, arguments in zip(group.variants, group.rows, group.arguments, strict=True):
                if len(self.found) >= self.free:
                    return len(self.found)
                if variant.id in self._seen or variant.id in withheld:
                    continue
                self._seen.add(variant.id)
                if self._add(variant, row, arguments):
                    self.found.append((pending, variant))
        return len(self.found)

    def take(self, pending: PendingGroup, ids: Sequence[int]) -> bool:
        """Take in these members of an array that has begun, all of them; False if one can't join.

        Nobody else can be looked for after that.
        """
        group = pending.group.part(ids, pending.group.index, "")
        for variant, row, arguments in zip(group.variants, group.rows, group.arguments, strict=True):
            if not self._add(variant, row, arguments):
                return False
        self.found = [(pending, variant) for variant in group.variants]
        return True

    def found_in(self, opened: PendingGroup) -> None:
        """The array of those that may join, with its state."""
        self.found = [(opened, variant) for _, variant in self.found]

    @property
    def waiting(self) -> int:
        """Variants that wait for another array."""
        pending_groups = [pending for pending in self.trainer.waiting if not pending.begun]
        return sum(len(set(pending.group.ids) - _withheld(self.trainer)) for pending in pending_groups) - len(
            self.found
        )

    def arguments(self, pending: PendingGroup, variant: Variant) -> dict[str, Any]:
        """What the family builds a variant with."""
        return pending.group.arguments[pending.group.ids.index(variant.id)]

    def group(self, order: Sequence[int]) -> Group:
        """The array of these variants, of those that were there and those that join."""
        known = {v.id: (v, r, a) for v, r, a in _triples(self._group)}
        known |= {v.id: (v, r, a) for pending, _ in self.found for v, r, a in _triples(pending.group)}
        chosen = [known[id] for id in order]
        variants, rows, arguments = (tuple(column) for column in zip(*chosen, strict=True))
        like, found = self._group, self._whole.group(self._group.index, self.trainer.settings.data, False)
        # What was measured of the array holds for it with other members as well.
        memory = like.memory_bytes * max(1, found.parameters) // max(1, like.parameters)
        facts: dict[str, Any] = {"parameters": found.parameters, "padding": found.padding, "likes": ()}
        facts |= {"architectures": found.architectures, "memory_bytes": max(like.memory_bytes, memory)}
        return replace(like, variants=variants, rows=rows, arguments=arguments, **facts)


def _withheld(trainer: Schedule) -> set[int]:
    """Variants that were stopped, deleted or paused before their array was built."""
    return trainer.early_stops | trainer.requested.deleted | trainer.requested.held


def taken_off(trainer: Schedule, found: Sequence[tuple[PendingGroup, Variant]]) -> None:
    """These variants wait no longer."""
    for pending in {id(pending): pending for pending, _ in found}.values():
        group = pending.group
        joined = {variant.id for other, variant in found if other is pending}
        rest = [v for v in group.ids if v not in joined]
        if pending.run is not None:  # the others have ended
            trainer.replace(group, [group.half(rest, group.index, group.reason)] if rest else [])
            trainer.withdraw(pending)
            continue
        left = [group.part(rest, group.index, group.reason)] if rest else []
        trainer.replace(group, left)
        place = next(i for i, other in enumerate(trainer.waiting) if other is pending)
        del trainer.waiting[place]
        for one in left:
            trainer.waiting.insert(place, replace(pending, group=one))


def gathered(trainer: Schedule, pending: PendingGroup) -> PendingGroup:
    """An array that is to begin, with what else waits and fuses with it; at most as many as there are slots."""
    s, group = trainer.settings, pending.group
    if s.slots is None or group.serial or group.fitted or pending.begun:
        return pending
    if len(group.ids) > s.slots:
        now, later = group.ids[: s.slots], group.ids[s.slots :]
        rest = group.part(later, trainer.free_index, group.reason)
        first = group.part(now, group.index, group.reason)
        trainer.replace(group, [first, rest])
        trainer.waiting.append(replace(pending, group=rest))
        return replace(pending, group=first)
    joiner = Joiner(trainer, group, group.ids, Joiner.room(s, group) - len(group.ids))
    if joiner.free <= 0 or not joiner.look():
        return pending
    taken_off(trainer, joiner.found)
    whole = replace(joiner.group([*group.ids, *(v.id for _, v in joiner.found)]), fitted=False)
    trainer.replace(group, [whole])
    return replace(pending, group=whole)


def _triples(group: Group) -> Any:
    return zip(group.variants, group.rows, group.arguments, strict=True)
