"""The variants of one array."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hfta_nb.records.events import GroupRecord
from hfta_nb.search.grid import Variant, show


@dataclass(frozen=True)
class Group:
    """Variants of one array, with everything their training needs to know.

    Attributes:
        rows: per variant, the value of every training axis.
        arguments: per variant, what the family's `build` is called with.
        parameters: number of parameters that one member takes, with its padding.
        architectures: how many different ones there are.
        padding: the share of the parameters that is padding.
        memory_bytes: what one member takes while it trains: an estimate, unless `measured`.
        fixed_bytes: what the array takes beside its members: where it was not measured, what they don't train.
        capacity: the most members that were found to train together; 0 where nothing was measured or asked for.
        measured: whether the device was asked what members take.
        reckoned: whether the estimate has activations in it.
        too_large: whether the device's memory was found not to hold even one member.
        fitted: whether it is known to be of the right size, or need not be.
        checkpointed: whether the backward computes activations again instead of keeping them.
        captured: whether steps may be recorded to be replayed, for which there must be memory.
        features: what the members' frozen submodules compute once per sample, in words; empty for nothing.
        why_no_features: why nothing; empty where that was not looked at.
        likes: variants of further architectures, built along so that the members are padded as they were with them.
        differing_in: the axes whose values differ within the group.
    """

    index: int
    variants: tuple[Variant, ...]
    rows: tuple[dict[str, Any], ...]
    arguments: tuple[dict[str, Any], ...]
    reason: str
    parameters: int
    memory_bytes: int
    serial: bool = False
    architectures: int = 1
    padding: float = 0.0
    fixed_bytes: int = 0
    capacity: int = 0
    measured: bool = False
    reckoned: bool = False
    too_large: bool = False
    fitted: bool = False
    checkpointed: bool = False
    captured: bool = True
    features: str = ""
    why_no_features: str = ""
    likes: tuple[tuple[Variant, dict[str, Any]], ...] = ()

    @property
    def differing_in(self) -> tuple[str, ...]:
        names = self.variants[0].config
        return tuple(n for n in names if len({show(v.config[n]) for v in self.variants}) > 1)

    def row(self) -> dict[str, Any]:
        """The group as a row of a table."""
        return {
            "array": self.index,
            "members": len(self.variants),
            "variants": [v.id for v in self.variants],
            "differing_in": ", ".join(self.differing_in) or "-",
            "split_because": self.reason or "-",
            "architectures": self.architectures,
            "padding": self.padding,
            "parameters": self.parameters,
            "memory_bytes": self.memory_bytes,
            "fixed_bytes": self.fixed_bytes,
            "features": self.features or (f"none: {self.why_no_features}" if self.why_no_features else None),
            "capacity": 0 if self.too_large else self.capacity or None,
        }

    def record(self) -> GroupRecord:
        strategy = "one after another" if self.serial else "fused"
        if self.architectures > 1:
            strategy += f", {self.architectures} architectures, {self.padding:.0%} padding"
        if self.checkpointed:
            strategy += ", activations computed again"
        if self.features:
            strategy += f", {self.features} computed once"
        return GroupRecord(
            self.index,
            self.ids,
            self.reason,
            self.parameters,
            self.memory_bytes,
            strategy,
            self.padding,
            self.architectures,
            self.fixed_bytes,
            self.capacity,
        )

    @property
    def ids(self) -> tuple[int, ...]:
        """Of its variants."""
        return tuple(v.id for v in self.variants)

    def state(self) -> dict[str, Any]:
        """What of an array its plan does not say, as plain data; see `planned`."""
        state = {"index": self.index, "variants": list(self.ids), "reason": self.reason}
        return {**state, "likes": [v.id for v, _ in self.likes], **{name: getattr(self, name) for name in _FOUND}}

    def part(self, ids: Sequence[int], index: int, reason: str) -> Group:
        """An array of these variants alone, in this order of the group's."""
        places = [i for i, v in enumerate(self.variants) if v.id in ids]
        return replace(
            self,
            index=index,
            reason=reason,
            variants=tuple(self.variants[i] for i in places),
            rows=tuple(self.rows[i] for i in places),
            arguments=tuple(self.arguments[i] for i in places),
        )

    def half(self, ids: Sequence[int], index: int, reason: str) -> Group:
        """Like `part`, of an array that has trained already: its members stay padded as they are."""
        part = self.part(ids, index, reason)
        if self.architectures == 1:
            return part
        there = {repr(a) for a in part.arguments}
        likes = {
            repr(a): (v, a)
            for v, a in [*self.likes, *zip(self.variants, self.arguments, strict=True)]
            if repr(a) not in there
        }
        return replace(part, likes=tuple(likes.values()))

    def beside(self, found: Sequence[tuple[Group, int]]) -> Group:
        """With these members of other arrays as well, each given as its array and its place there."""
        return replace(
            self,
            variants=(*self.variants, *(other.variants[place] for other, place in found)),
            rows=(*self.rows, *(other.rows[place] for other, place in found)),
            arguments=(*self.arguments, *(other.arguments[place] for other, place in found)),
        )

    def divided_with(self, other: Group) -> bool:
        """Whether two arrays were one until capacity divided them."""
        sizes = [(g.capacity, g.parameters, g.rows[0]["batch_size"]) for g in (self, other)]
        return sizes[0] == sizes[1] and self.capacity > 0

    def divided(self, capacity: int, why: str, free: int) -> list[Group]:
        """Arrays of at most so many members, as even as can be.

        Args:
            capacity: members.
            why: of the division, in words.
            free: the first number that no other array has.
        """
        count = -(-len(self.variants) // capacity)
        cuts = [len(self.variants) * i // count for i in range(count + 1)]
        parts = [self.ids[a:b] for a, b in itertools.pairwise(cuts)]
        whole = replace(self, capacity=capacity, fitted=True)
        apart = f"not with array {self.index}: {why}"
        return [whole.part(ids, free + i - 1 if i else self.index, apart if i else self.reason)
                for i, ids in enumerate(parts)]  # fmt: skip


_FOUND = (
    *("memory_bytes", "fixed_bytes", "capacity", "parameters", "architectures", "padding"),
    *("fitted", "measured", "checkpointed", "captured", "serial"),
)
"""What is found out about an array after it was planned."""


def planned(state: Mapping[str, Any], plan: Sequence[Group]) -> Group:
    """The array of a `Group.state`; clones were planned apart from it."""
    ids = tuple(state["variants"])
    whole = next(g for g in plan if ids[0] in g.ids)
    every = {v.id: (v, row, a) for g in plan for v, row, a in zip(g.variants, g.rows, g.arguments, strict=True)}
    variants, rows, arguments = zip(*(every[i] for i in ids), strict=True)
    known = {name: state[name] for name in _FOUND if name in state}  # earlier versions kept fewer
    likes = tuple((every[i][0], every[i][2]) for i in state["likes"])
    whole = replace(whole, index=int(state["index"]), reason=state["reason"], likes=likes)
    return replace(whole, variants=variants, rows=rows, arguments=arguments, **known)
