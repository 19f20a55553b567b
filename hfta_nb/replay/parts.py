"""A recorded step in parts: what draws random numbers, which is left as it is, and what can be compiled between.

A mask of dropout depends on nothing but its shape, so it is drawn ahead, and most steps are one part: the draws, and
one graph of all the rest. What draws from numbers that the step has computed begins another part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.members.generators import MemberGenerators
from hfta_nb.replay.kernels import SHAPE_ONLY
from hfta_nb.replay.late import Fetch, Late
from hfta_nb.replay.record import Call, Place

_BY_SHAPE = SHAPE_ONLY | {torch.ops.aten.rand_like.default, torch.ops.aten.randn_like.default}


@dataclass
class Part:
    """Of a step.

    Attributes:
        draws: calls to be made first as they are, in order, each with the member whose random numbers are drawn then.
        calls: that follow.
    """

    draws: list[tuple[int, Call]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def parts_of(calls: Sequence[Call]) -> list[Part]:
    """The parts of a step, as few as can be; each member draws in the order recorded."""
    parts = [Part()]
    for call in calls:
        if call.member is None:
            parts[-1].calls.append(call)
            continue
        ahead = _ahead(parts[-1].calls, call)
        if ahead is None:
            parts.append(Part())
        moved = {id(c) for c in ahead or ()}
        parts[-1].calls = [c for c in parts[-1].calls if id(c) not in moved]
        parts[-1].draws += [(call.member, c) for c in (*(ahead or ()), call)]
    for part in parts:
        part.draws = _by_member(part.draws)
    return parts


def _ahead(calls: Sequence[Call], draw: Call) -> list[Call] | None:
    """The calls that have to be made before a draw, if they do nothing but make memory; else None."""
    changes, uses = set(draw.changes()), set(used(draw))
    found: list[Call] = []
    for call in reversed(calls):
        if call.changes() & uses or used(call) & changes:
            if call.writes or not call.makes or used(call) - call.changes():
                return None
            changes |= call.changes()
            uses |= used(call)
            found.append(call)
    return found[::-1]


def used(call: Call) -> frozenset[int]:
    """Storages whose contents a call reads, and those that it makes or writes to."""
    return call.changes() if call.function in _BY_SHAPE else call.changes() | call.reads()


def _by_member(draws: list[tuple[int, Call]]) -> list[tuple[int, Call]]:
    """One member's draws after another's, as changing the generator costs more than a small draw does."""
    changes: dict[int, set[int]] = {}
    uses: dict[int, set[int]] = {}
    for member, call in draws:
        changes.setdefault(member, set()).update(call.changes())
        uses.setdefault(member, set()).update(used(call))
    alone = all(not changes[a] & uses[b] for a in changes for b in uses if a != b)
    return sorted(draws, key=lambda drawn: drawn[0]) if alone else draws


class Draws:
    """The draws of a part, made as they were recorded.

    Args:
        draws: see `Part`.
        there: tensors of storages that are there before the step, or hold what never changes.
        bases: the whole of storages that the step makes.
        made: what they are in this run, by number; what is made is put there.
        generators: of the members.
    """

    def __init__(
        self,
        draws: Sequence[tuple[int, Call]],
        there: Mapping[int, Tensor],
        bases: Mapping[int, Place],
        made: list[Any],
        generators: MemberGenerators,
    ) -> None:
        self._there, self._bases = there, bases
        self._steps: list[Callable[[], Any]] = []
        now: int | None = None
        for member, call in draws:
            if member != now:
                self._steps += [] if now is None else [partial(generators.leave, now)]
                self._steps.append(partial(generators.enter, member))
                now = member
            shape_only = call.function in _BY_SHAPE
            args, kwargs = self._resolved(call.args, shape_only), self._resolved(call.kwargs, shape_only)
            keep = [(i, r.storage) for i, r in enumerate(call.results) if r is not None and r.storage in call.makes]
            self._steps.append(Late(call.function, args, kwargs, made, keep))
        self._steps += [] if now is None else [partial(generators.leave, now)]

    def run(self) -> None:
        """Draw; only within `MemberGenerators.borrowed`."""
        with torch._C._AutoDispatchBelowAutograd():
            for step in self._steps:
                step()

    def _resolved(self, tree: Any, shape_only: bool) -> Any:
        if isinstance(tree, Place):
            return self._found(tree, shape_only)
        if isinstance(tree, list | tuple):
            return [self._resolved(v, shape_only) for v in tree]
        if isinstance(tree, dict):
            return {k: self._resolved(v, shape_only) for k, v in tree.items()}
        return tree

    def _found(self, place: Place, shape_only: bool) -> Tensor | Fetch:
        if place.storage in self._there:
            return torch.as_strided(self._there[place.storage].detach(), place.size, place.stride, place.offset)
        if shape_only:  # it may not be made yet
            device = next(iter(self._there.values())).device
            return torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=device)
        return Fetch(place.storage, None if place == self._bases[place.storage] else place)


def bases_of(calls: Sequence[Call]) -> dict[int, Place]:
    """The whole of every storage that the calls make."""
    return {r.storage: r for c in reversed(calls) for r in c.results if r is not None and r.storage in c.makes}


def used_after(parts: Sequence[Part], results: Collection[Place]) -> list[set[int]]:
    """For each part, the storages that later parts use, or that are results; of the last part none.

    Results are read in the last part.
    """
    after: list[set[int]] = [set()]
    for part in reversed(parts[1:]):
        calls = [*(c for _, c in part.draws), *part.calls]
        mine = {s for c in calls for s in c.reads() | c.changes()}
        after.append(after[-1] | mine | {r.storage for r in results})
    return after[::-1]
