"""Moves the draws of a recorded step to its beginning: a mask of dropout depends on its shape only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.replay.draws import with_stream
from hfta_nb.engine.replay.dynamic_call import DynamicCall, Fetch
from hfta_nb.engine.replay.out_variants import SHAPE_ONLY
from hfta_nb.engine.replay.trace import BufferView, Instruction, NotRecordableError, with_views

_BY_SHAPE = SHAPE_ONLY | {torch.ops.aten.rand_like.default, torch.ops.aten.randn_like.default}


Drawn = tuple[int, Instruction]
"""A call, and the member whose random numbers it draws."""


def drawn_first(calls: Sequence[Instruction]) -> tuple[list[Drawn], list[Instruction]]:
    """The draws with the memory that they need, and the remaining calls; the order of each member's draws is kept.

    Raises:
        NotRecordableError: a draw needs values that the step computes.
    """
    draws: list[Drawn] = []
    rest: list[Instruction] = []
    for call in calls:
        if call.member is None:
            rest.append(call)
            continue
        ahead = _ahead(rest, call)
        if ahead is None:
            raise NotRecordableError("it draws random numbers from what it has computed")
        moved = {id(c) for c in ahead}
        rest = [c for c in rest if id(c) not in moved]
        draws += [(call.member, c) for c in (*ahead, call)]
    return _by_member(draws), rest


def _ahead(calls: Sequence[Instruction], draw: Instruction) -> list[Instruction] | None:
    """The calls that must precede a draw, if they only allocate memory; else None."""
    changes, uses = set(draw.changes()), set(_used(draw))
    found: list[Instruction] = []
    for call in reversed(calls):
        if call.changes() & uses or _used(call) & changes:
            if call.writes or not call.makes or _used(call) - call.changes():
                return None
            changes |= call.changes()
            uses |= _used(call)
            found.append(call)
    return found[::-1]


def _used(call: Instruction) -> frozenset[int]:
    """Storages that a call reads, and those that it creates or writes to."""
    return call.changes() if call.function in _BY_SHAPE else call.changes() | call.reads()


def _by_member(draws: list[Drawn]) -> list[Drawn]:
    """The draws grouped by member, as changing the generator costs more than a small draw."""
    changes: dict[int, set[int]] = {}
    uses: dict[int, set[int]] = {}
    for member, call in draws:
        changes.setdefault(member, set()).update(call.changes())
        uses.setdefault(member, set()).update(_used(call))
    alone = all(not changes[a] & uses[b] for a in changes for b in uses if a != b)
    return sorted(draws, key=lambda drawn: drawn[0]) if alone else draws


class Draws:
    """The draws of a step, run in the recorded order.

    Args:
        draws: see `drawn_first`.
        there: tensors of storages that exist before the step, or are constant.
        bases: whole storages that the draws create.
        made: the tensors of this run, by storage; new ones are added.
        generators: of the members.
    """

    def __init__(
        self,
        draws: Sequence[Drawn],
        there: Mapping[int, Tensor],
        bases: Mapping[int, BufferView],
        made: list[Any],
        generators: MemberGenerators,
    ) -> None:
        self._there, self._bases = there, bases
        self._steps: list[Callable[[], Any]] = []
        now: int | None = None
        for member, recorded in draws:
            call = with_stream(recorded, generators)
            if call.member is not None and member != now:
                self._steps += [] if now is None else [partial(generators.leave, now)]
                self._steps.append(partial(generators.enter, member))
                now = member
            shape_only = recorded.function in _BY_SHAPE
            args, kwargs = with_views((call.args, call.kwargs), partial(self._found, shape_only=shape_only))
            keep = [(i, r.storage) for i, r in enumerate(call.results) if r is not None and r.storage in call.makes]
            self._steps.append(DynamicCall(call.function, args, kwargs, made, keep))
        self._steps += [] if now is None else [partial(generators.leave, now)]

    def run(self) -> None:
        """Run the draws. Requires `MemberGenerators.borrowed`."""
        with torch._C._AutoDispatchBelowAutograd():
            for step in self._steps:
                step()

    def _found(self, place: BufferView, shape_only: bool) -> Tensor | Fetch:
        if place.storage in self._there:
            return torch.as_strided(self._there[place.storage].detach(), place.size, place.stride, place.offset)
        if shape_only:  # it may not exist yet
            device = next(iter(self._there.values())).device
            return torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=device)
        return Fetch(place.storage, None if place == self._bases[place.storage] else place)
