"""Divides a recorded step into branches that can run at the same time: the calls of different blocks of members.

A *branch* is the sequence of calls of some blocks, which one thread runs. Branches are independent if no call uses
values that another branch has created, and if existing values are only read, or written where no other branch accesses
them (a member's rows of the buffers). The calls after the last block join the results, and run after all branches.
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
    """The number of branches, if blocks are independent."""
    return min(trace.branches, len(trace.blocks))


def branches_of(trace: Trace, calls: Sequence[Instruction], constant: Collection[int]) -> list[int] | None:
    """Per call, the number of its branch; for calls after all branches, the number of branches.

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
    branches = [of_block[bisect_right(ends, numbers[id(call)])] for call in calls]
    return branches if _independent(trace.outside, constant, calls, branches, count) else None


def _independent(
    outside: Collection[int],
    constant: Collection[int],
    calls: Sequence[Instruction],
    branches: Sequence[int],
    count: int,
) -> bool:
    made: dict[int, int] = {}
    read: dict[int, dict[int, Extent]] = {}
    written: dict[int, dict[int, Extent]] = {}
    for call, branch in zip(calls, branches, strict=True):
        if branch == count:
            continue
        made.update(dict.fromkeys(call.makes, branch))
        unsaid = any(word in call.function._schema.name for word in WRITES_UNSAID)
        for place in places((call.args, call.kwargs)):
            if place.storage in outside:
                writes = unsaid or place.storage in call.writes
                _extend((written if writes else read).setdefault(place.storage, {}), branch, place)
            elif place.storage not in constant and made.setdefault(place.storage, branch) != branch:
                return False
    return all(
        one[1] < other[0] or other[1] < one[0]
        for storage, by_branch in written.items()
        for branch, one in by_branch.items()
        for found in (by_branch, read.get(storage, {}))
        for beside, other in found.items()
        if beside != branch
    )


def _extend(extents: dict[int, Extent], branch: int, place: BufferView) -> None:
    """Extend the range of bytes that a branch accesses."""
    if 0 in place.size:
        return
    first = place.offset * place.dtype.itemsize
    last = first + place.reach * place.dtype.itemsize - 1
    before = extents.get(branch, (first, last))
    extents[branch] = min(before[0], first), max(before[1], last)


# Running branches.


class ParallelBranches:
    """Calls for several threads.

    Args:
        branches: of each thread.
        opening: called first; may be None.
        runner: runs functions in parallel; all have ended when it returns.
    """

    def __init__(
        self,
        branches: Sequence[Sequence[Callable[[], Any]]],
        opening: Callable[[], Any] | None,
        runner: Callable[[Sequence[Job]], None] = run_parallel,
    ) -> None:
        self.branches, self.opening, self.runner = branches, opening, runner
        self._jobs = [partial(_branch, steps) for steps in branches]

    def __len__(self) -> int:
        return len(self.branches)

    def run(self) -> None:
        """Run all branches and wait for them; raises the first error."""
        if self.opening is not None:
            self.opening()
        self.runner(self._jobs)


def _branch(steps: Sequence[Callable[[], Any]]) -> None:
    # Autograd's state belongs to a thread; the trace contains autocast's casts.
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for step in steps:
            step()


def drawn(generators: MemberGenerators, member: int, step: Callable[[], Any]) -> None:
    """Run a call that draws random numbers of a member."""
    with drawing_from(None):  # the branch may have a thread of its own
        generators.enter(member)
        try:
            step()
        finally:
            generators.leave(member)


def deliver(buffer: Tensor, found: Any, made: list[Any]) -> None:
    """Copy a gradient to its destination."""
    buffer.copy_(found if isinstance(found, Tensor) else found.get(made))
