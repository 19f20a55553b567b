"""Divides a recorded step into lanes that can run at the same time: the calls of different blocks of members.

A *lane* is the sequence of calls of some blocks, which one thread runs. Lanes are independent if no call uses values
that another lane has created, and if existing values are only read, or written where no other lane accesses them (a
member's rows of the buffers). The calls after the last block join the results, and run after all lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.own_draws import drawing_from
from hfta_nb.engine.members.threads import Job, run_parallel
from hfta_nb.engine.replay.liveness import WRITES_UNSAID
from hfta_nb.engine.replay.trace import BufferView, Instruction, Trace, places

Extent = tuple[int, int]


def count_of(trace: Trace) -> int:
    """The number of lanes, if blocks are independent."""
    return min(trace.lanes, len(trace.blocks))


def lanes_of(trace: Trace, calls: Sequence[Instruction], constant: Collection[int]) -> list[int] | None:
    """Per call, the number of its lane; for calls after all lanes, the number of lanes.

    Args:
        trace: of the step.
        calls: the calls of the trace that are to run.
        constant: storages that are created once, before all runs.

    Returns:
        None if there is only one block, or blocks depend on each other.
    """
    ends, count = trace.blocks, count_of(trace)
    if count < 2:
        return None
    numbers = {id(call): i for i, call in enumerate(trace.calls)}
    of_block = [block * count // len(ends) for block in range(len(ends))] + [count]
    lanes = [of_block[bisect_right(ends, numbers[id(call)])] for call in calls]
    return lanes if _independent(trace.outside, constant, calls, lanes, count) else None


def _independent(
    outside: Collection[int], constant: Collection[int], calls: Sequence[Instruction], lanes: Sequence[int], count: int
) -> bool:
    made: dict[int, int] = {}
    read: dict[int, dict[int, Extent]] = {}
    written: dict[int, dict[int, Extent]] = {}
    for call, lane in zip(calls, lanes, strict=True):
        if lane == count:
            continue
        made.update(dict.fromkeys(call.makes, lane))
        unsaid = any(word in call.function._schema.name for word in WRITES_UNSAID)
        for place in places((call.args, call.kwargs)):
            if place.storage in outside:
                writes = unsaid or place.storage in call.writes
                _extend((written if writes else read).setdefault(place.storage, {}), lane, place)
            elif place.storage not in constant and made.setdefault(place.storage, lane) != lane:
                return False
    return all(
        one[1] < other[0] or other[1] < one[0]
        for storage, by_lane in written.items()
        for lane, one in by_lane.items()
        for found in (by_lane, read.get(storage, {}))
        for beside, other in found.items()
        if beside != lane
    )


def _extend(extents: dict[int, Extent], lane: int, place: BufferView) -> None:
    """Extend the range of bytes that a lane accesses."""
    if 0 in place.size:
        return
    first = place.offset * place.dtype.itemsize
    last = first + place.reach * place.dtype.itemsize - 1
    before = extents.get(lane, (first, last))
    extents[lane] = min(before[0], first), max(before[1], last)


# Running lanes.


class ParallelLanes:
    """Calls for several threads.

    Args:
        lanes: of each thread.
        opening: called first; may be None.
        runner: runs functions in parallel; all have ended when it returns.
    """

    def __init__(
        self,
        lanes: Sequence[Sequence[Callable[[], Any]]],
        opening: Callable[[], Any] | None,
        runner: Callable[[Sequence[Job]], None] = run_parallel,
    ) -> None:
        self.lanes, self.opening, self.runner = lanes, opening, runner
        self._jobs = [partial(_lane, steps) for steps in lanes]

    def __len__(self) -> int:
        return len(self.lanes)

    def run(self) -> None:
        """Run all lanes and wait for them; raises the first error."""
        if self.opening is not None:
            self.opening()
        self.runner(self._jobs)


def _lane(steps: Sequence[Callable[[], Any]]) -> None:
    # Autograd's state belongs to a thread; the trace contains autocast's casts.
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for step in steps:
            step()


def drawn(generators: MemberGenerators, member: int, step: Callable[[], Any]) -> None:
    """Run a call that draws random numbers of a member."""
    with drawing_from(None):  # the lane may have a thread of its own
        generators.enter(member)
        try:
            step()
        finally:
            generators.leave(member)


def deliver(room: Tensor, found: Any, made: list[Any]) -> None:
    """Copy a gradient to its destination."""
    room.copy_(found if isinstance(found, Tensor) else found.get(made))
