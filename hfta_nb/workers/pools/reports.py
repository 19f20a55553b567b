"""What a pool and its workers send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from hfta_nb.data import Stream
from hfta_nb.records.events import Event
from hfta_nb.train.pending_group import End, PendingGroup, WeightsOf
from hfta_nb.train.plan import Group

NEW = 1_000_000
"""A worker numbers arrays that it makes by dividing others from here on; the pool gives them free numbers."""


@dataclass(frozen=True)
class Order:
    """Arrays that a worker is to train, one after another.

    Attributes:
        number: of the order; requests name it, so that one that comes late has no effect on the next order.
        pending: arrays, each with its last checkpoint or None.
        early_stops: variants that were stopped before.
        pinned: variants that are not to be pruned.
        checkpoint_every_s: seconds between two checkpoints.
        devices: how many of the worker's devices train each array together.
        batch_norm: whose statistics batch norms take then; see `hfta_nb.distributed.DataParallel`.
        stream: data that is shared with other workers, in place of the worker's own; None to read its own.
    """

    number: int
    pending: tuple[PendingGroup, ...]
    early_stops: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    checkpoint_every_s: float = 10.0
    devices: int = 1
    batch_norm: str = "sync"
    stream: Stream | None = None


@dataclass(frozen=True)
class Beat:
    """The worker is there."""


@dataclass(frozen=True)
class Told:
    """An event of an array."""

    event: Event


@dataclass(frozen=True)
class Planned:
    """The arrays of the order have changed: divided to fit the memory, or measured."""

    arrays: tuple[Group, ...]


@dataclass(frozen=True)
class Saved:
    """A checkpoint, in the host's memory. The event `CheckpointSaved` follows.

    Attributes:
        arrays: of the order.
        pending: arrays that are not done, each with how far it is.
        ended: of arrays that are done.
        ends: by file, what is kept of an array that is done.
        weights: by variant, and by the name of a moment.
    """

    arrays: tuple[Group, ...]
    pending: tuple[PendingGroup, ...]
    ended: tuple[End, ...]
    ends: Mapping[str, Any]
    weights: Mapping[WeightsOf, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """The worker is done with the order.

    Attributes:
        stopped: whether it was asked to stop, so that arrays are left to train.
        error: the first that a member's own code raised; where `detail` is given, the one that ended the order.
        detail: traceback of an error that ended the order.
    """

    stopped: bool = False
    error: Exception | None = None
    detail: str = ""


@dataclass(frozen=True)
class Lost:
    """The worker is gone: made by whoever looks after it."""

    reason: str


Report: TypeAlias = Beat | Told | Planned | Saved | Done | Lost
