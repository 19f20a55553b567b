"""A worker's side of an order: the training loop of a study, with its arrays alone."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from hfta_nb.data import StreamEndedError
from hfta_nb.errors import DistributedError, StoreError, WorkerError
from hfta_nb.records.events import Control, Heartbeat, PlanMade
from hfta_nb.train import Settings, Trainer
from hfta_nb.train.pending_group import PendingGroup, WeightsOf
from hfta_nb.train.step import Step
from hfta_nb.train.step.rollback import on_host
from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.distributed.leader import Start, spread
from hfta_nb.workers.pools.reports import NEW, Beat, Done, Lost, Order, Planned, Report, Saved, Told
from hfta_nb.workers.processes import pickling
from hfta_nb.workers.processes.child import Send, Task
from hfta_nb.workers.processes.frames import Message

Emit = Callable[[Report], None]


class Training(Task):
    """What a worker of a run does: it trains one order after another.

    Args:
        settings: of the run, pickled.
        start: starts the other ranks of an array that several devices train.
    """

    def __init__(self, settings: bytes, start: Start = Followers) -> None:
        self._settings, self._start = pickling.loads(settings)[0], start

    def do(self, call: Message, payload: bytes, control: Control, report: Send) -> None:
        """Train an order."""
        order: Order = pickling.unpacked(payload)
        perform(self._settings, order, control, lambda event: report({}, pickling.packed(event)), self._start)


def perform(settings: Settings, order: Order, control: Control, emit: Emit, start: Start = Followers) -> None:
    """Train the arrays of an order to their ends, or to a request to stop.

    Args:
        settings: of the run.
        order: what to train.
        control: requests.
        emit: sends a report; what it is given may change once it has returned.
        start: starts the other ranks of an array that several devices train.
    """
    if order.stream is not None:
        settings = replace(settings, data=order.stream)
    try:
        with spread(order.devices, settings.device, order.batch_norm, start) as prepare:
            trainer = _trainer(settings, order, control, emit, prepare)
            for event in trainer:
                if isinstance(event, PlanMade):
                    emit(Planned(tuple(trainer.arrays)))
                else:
                    emit(Beat() if isinstance(event, Heartbeat) else Told(event))
    except (DistributedError, StreamEndedError) as error:  # another worker goes on
        lost = "its stream" if isinstance(error, StreamEndedError) else "one of its devices"
        emit(Lost(f"lost {lost} ({error.what})"))
        return
    except Exception as error:
        detail = "".join(traceback.format_exception(error))
        emit(Done(error=_sendable(error), detail=detail))
        return
    emit(Done(trainer.stopped, None if trainer.error is None else _sendable(trainer.error)))


def _trainer(
    settings: Settings, order: Order, control: Control, emit: Emit, prepare: Callable[[Step], Step] | None
) -> Trainer:
    ends = _Kept()

    def save(state: dict[str, Any], weights: Mapping[WeightsOf, Mapping[str, Tensor]]) -> str:
        groups = {group.index: group for group in trainer.arrays}
        pending = tuple(PendingGroup(groups[saved["array"]], on_host(saved["run"])) for saved in state["todo"])
        ended = tuple(trainer.ended.values())
        emit(Saved(tuple(trainer.arrays), pending, ended, ends.taken(), on_host(weights)))
        return ""

    every_s = order.checkpoint_every_s
    groups = [pending.group for pending in order.pending]
    trainer = Trainer(settings, groups, control, save, prepare=prepare, checkpoint_every_s=every_s, ends=ends)
    trainer.waiting = deque(order.pending)
    trainer.least_index = NEW
    trainer.early_stops |= order.early_stops
    trainer.pinned |= order.pinned
    return trainer


class _Kept:
    """The ends of arrays until the pool gets them."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    def write_end(self, array: int, state: Mapping[str, Any]) -> str:
        name = str(array)
        self._states[name] = on_host(state)
        return name

    def read_end(self, name: str) -> Any:
        raise StoreError("the end of an array is kept by the pool", where=name)  # an order has none to go on from

    def taken(self) -> dict[str, Any]:
        states, self._states = self._states, {}
        return states


def _sendable(error: Exception) -> Exception:
    """The error, or its words where it can't be sent."""
    try:
        pickling.unpacked(pickling.packed(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")
    return error
