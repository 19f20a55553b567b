"""Schedules of an array's steps: how many members run at once, and on which threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members import threads


class ExecutionSchedule(NamedTuple):
    """How the steps of an array run.

    Attributes:
        block_size: how many members run at once.
        threads: see `FusedArray.threads`; empty for the current setting.
    """

    block_size: int
    threads: str = ""

    def put(self, state: ArrayState) -> None:
        """Set the array to this schedule."""
        settings = state.settings  # the properties are for settings by the user
        settings.block_size, settings.threads = self.block_size, self.threads or settings.threads

    def is_active(self, state: ArrayState) -> bool:
        """True if the array still has this schedule; after a failure of `vmap`, members run one at a time."""
        return state.settings.block_size == self.block_size

    def __str__(self) -> str:
        return f"{self.block_size} {_ON[self.threads]}".strip()


_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

_ON = {"": "", "kernels": "with threads in every kernel", "one": "on one thread", "blocks": "side by side"}


def schedules_of(state: ArrayState) -> list[ExecutionSchedule]:
    """Schedules that may be the fastest, larger block sizes first; one if there is no choice."""
    members = len(state)
    sizes = {1, members, *(s for s in (4,) if s < members)} if state.settings.block_size > 1 else {1}
    if members > 1 and state.engine.architectures is not None and state.engine.architectures.preallocated:
        sizes -= {1}  # a member that runs alone is recorded with its own sizes
    on = "one" if threads.selectable(state.generators.device) else ""
    return [ExecutionSchedule(size, on) for size in sorted(sizes, reverse=True)]


def untimed_block_size(state: ArrayState) -> int:
    """The block size to use if nothing may be timed.

    On a CPU, convolutions of all members at once are slower than one after another for most models that were measured:
    their activations do not fit into cache, and torch's grouped convolutions are slow, above all in float64.
    """
    return 1 if convolutions(state) else len(state)


def slow_together(state: ArrayState) -> bool:
    """True if several members at once are never faster: convolutions in float64 on a CPU.

    These are torch's own kernels; their first call for all members takes up to four times as long as one per member.
    """
    return any(m.weight.dtype == torch.float64 for m in convolutions(state))


def convolutions(state: ArrayState) -> list[Any]:
    """The convolutions of the model on a CPU."""
    if state.generators.device.type != "cpu":
        return []
    return [m for m in state.skeleton.modules() if isinstance(m, _CONVOLUTIONS)]


def chosen(state: ArrayState) -> ExecutionSchedule:
    """The current schedule of an array."""
    return ExecutionSchedule(
        state.settings.block_size, state.settings.threads if threads.selectable(state.generators.device) else ""
    )


def on_threads(best: ExecutionSchedule, state: ArrayState) -> list[ExecutionSchedule]:
    """Schedules on several threads that may be faster than the best one on a single thread."""
    if not best.threads:
        return []
    found = [ExecutionSchedule(best.block_size, "kernels")]
    if len(state) > 1:
        share = -(-len(state) // threads.available_threads())
        found.append(ExecutionSchedule(min(share, best.block_size), "blocks"))
    return found
