"""What an event says of a variant and of a group: their values, states and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | tuple[Json, ...] | None"
"""A value of a grid axis: a scalar, or a tuple of such."""

# States of a variant and of a run. A run is never WAITING, PRUNED, DIVERGED or DELETED.
WAITING = "WAITING"
RUNNING = "RUNNING"
PAUSED = "PAUSED"
STOPPED = "STOPPED"
COMPLETE = "COMPLETE"
PRUNED = "PRUNED"
DIVERGED = "DIVERGED"
FAILED = "FAILED"
INTERRUPTED = "INTERRUPTED"
DELETED = "DELETED"
WITH_RUN = "the run was stopped"
"""Why a member was stopped that goes on when its run does."""
FAILURES = frozenset({FAILED, INTERRUPTED})
"""An error was raised; or the process is gone (killed, crashed, with the machine), in which nothing was wrong."""
FINAL_STATES = frozenset({STOPPED, COMPLETE, PRUNED, DIVERGED, *FAILURES, DELETED})


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """A variant in an event: its number, its values per axis, its seed."""

    id: int
    config: dict[str, Json]
    seed: int


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Variants that train together in one array.

    Attributes:
        index: number of the group, from 0.
        variants: ids of its variants, in the order of the array's member axis.
        reason: why these variants are not in an earlier group; empty for the first group.
        parameters: number of parameters of one member.
        memory_bytes: estimate of the memory that one member needs while training.
        strategy: how it is trained, "fused" or "in turn", and why.
        padding: the share of the parameters that is padding, if members differ in size.
        architectures: number of different architectures.
        fixed_bytes: memory of the array besides its members; if `memory_bytes` was not measured, of what they don't
            train.
        capacity: the most members that can train together; 0 if neither measured nor given.
    """

    index: int
    variants: tuple[int, ...]
    reason: str
    parameters: int
    memory_bytes: int
    strategy: str = ""
    padding: float = 0.0
    architectures: int = 1
    fixed_bytes: int = 0
    capacity: int = 0


def tuples(value: Any) -> Any:
    """Convert JSON's lists to tuples, recursively; axis values are held in this form."""
    return tuple(tuples(v) for v in value) if isinstance(value, list | tuple) else value
