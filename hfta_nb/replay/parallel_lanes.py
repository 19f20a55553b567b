"""Which of a recorded step's calls can run beside each other: those of different blocks of members.

A *lane* is what one thread computes: the calls of some blocks, in order. Lanes are independent where no call touches
what another lane has made, and what was there before is read only, or written in places that no other lane touches (a
member's rows of the buffers). What follows the last block joins the results, and runs after all lanes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.members.generators import MemberGenerators
from hfta_nb.members.threads import Job, run_parallel
from hfta_nb.replay.liveness import WRITES_UNSAID
from hfta_nb.replay.record import BufferView, Instruction, Trace, places

Extent = tuple[int, int]


def count_of(trace: Trace) -> int:
    """How many lanes there are, if blocks are independent."""
    return min(trace.lanes, len(trace.blocks))


def lanes_of(trace: Trace, calls: Sequence[Instruction], constant: Collection[int]) -> list[int] | None:
    """Per call, the number of its lane; of those that follow all lanes, the number of lanes.

    Args:
        trace: of the step.
        calls: those of the recording that are to run.
        constant: storages made once, before all runs.

    Returns:
        None where there is one block only, or blocks are not independent of each other.
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
    """Note the bytes from the first to the last that a lane touches."""
    if 0 in place.size:
        return
    first = place.offset * place.dtype.itemsize
    entries = sum((size - 1) * stride for size, stride in zip(place.size, place.stride, strict=True))
    last = first + (entries + 1) * place.dtype.itemsize - 1
    before = extents.get(lane, (first, last))
    extents[lane] = min(before[0], first), max(before[1], last)


# Running them.


class ParallelLanes:
    """Calls for several threads.

    Args:
        lanes: of each thread.
        opening: called before; None for nothing.
        runner: runs functions side by side, all ended when it returns.
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
        """Call all; they have ended when this returns, or raises what one of them has raised."""
        if self.opening is not None:
            self.opening()
        self.runner(self._jobs)


def _lane(steps: Sequence[Callable[[], Any]]) -> None:
    # Autograd's state is that of a thread; autocast's casts are in the recording.
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for step in steps:
            step()


class Drawing:
    """Calls that draw random numbers, of any thread: one at a time, as they draw from the process's generators.

    Args:
        generators: of the members.
    """

    def __init__(self, generators: MemberGenerators) -> None:
        self._generators, self._lock = generators, threading.Lock()

    def __call__(self, member: int, step: Callable[[], Any]) -> None:
        with self._lock:
            self._generators.enter(member)
            try:
                step()
            finally:
                self._generators.leave(member)


def deliver(room: Tensor, found: Any, made: list[Any]) -> None:
    """Copy a gradient to where it belongs."""
    room.copy_(found if isinstance(found, Tensor) else found.get(made))
