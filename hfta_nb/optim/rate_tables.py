"""Learning rates on the device, as a table of those to come, for steps that are captured.

A captured step reads the row that a counter on the device points at. When an lr schedule goes on as foreseen, moving
the counter is all there is to do: nothing is copied, nobody waits, and nothing is captured anew. The values in the
optimizer's `param_groups` are what counts: where they are not the row that was foreseen, a new table is sent.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.optim import lr_scheduler as reference

from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.optim.optimizer_stub import OptimizerStub
from hfta_nb.optim.stub_values import pull

if TYPE_CHECKING:
    from hfta_nb.optim.optimizer_base import ArrayOptimizer

Row: TypeAlias = list[float]
"""The learning rate of each member."""

Foresee: TypeAlias = Callable[[int], list[Row]]
"""The rows of so many steps of an lr schedule that come after the present one; fewer, or none, where unknown."""

ROWS = 64
"""The most rows of a table."""

_TRUSTED = 2
"""How often rows may come otherwise than foreseen, until only the present one is sent."""


class Rates:
    """Learning rates of all members.

    Args:
        lrs: of now.
        device: of the parameters.
        foresee: tells those to come.

    Attributes:
        now: ``[M]``, float64, on the device: what the step's kernels read, after `take`.
        sent: how many tables have been copied to the device so far.
    """

    def __init__(self, lrs: Row, device: torch.device, foresee: Foresee) -> None:
        self._foresee, self._wrong, self.sent = foresee, 0, 0
        self._table = torch.zeros((ROWS, len(lrs)), dtype=torch.float64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._row = torch.zeros((1, len(lrs)), dtype=torch.float64, device=device)
        self.now = self._row[0]
        self._rows: list[Row] = []
        self._place = 0
        self._send([list(lrs), *foresee(ROWS - 1)])

    def take(self) -> None:
        """Read the present row, on the device; belongs into the step."""
        torch.index_select(self._table, 0, self._at, out=self._row)

    def go(self, lrs: Row) -> None:
        """Take the learning rates of now, of all members."""
        later = self._rows[self._place :]
        found = next((k for k, row in enumerate(later) if row == lrs), None)
        if found is not None:
            if found:
                self._place += found
                self._at.fill_(self._place)  # a kernel with the number in it: no copy
            return
        self._wrong += len(later) > 1
        self._send([list(lrs), *(self._foresee(ROWS - 1) if self._wrong <= _TRUSTED else [])])

    def _send(self, rows: list[Row]) -> None:
        self._rows, self._place, self.sent = rows, 0, self.sent + 1
        room = torch.tensor(rows, dtype=torch.float64)
        if self._table.device.type == "cuda":  # pinned, so that the host does not wait for the copy
            room = room.pin_memory()
        self._table[: len(rows)].copy_(room, non_blocking=True)
        self._at.zero_()


def rates_of(optimizer: ArrayOptimizer, group: int, device: torch.device, lrs: Row) -> Rates:
    """The learning rates of a group.

    Args:
        optimizer: of an array; its `capturable` says whether steps may be captured, for which it is worth foreseeing.
        group: number of the group of parameters.
        device: of the parameters.
        lrs: of now.
    """
    if not getattr(optimizer, "capturable", False):
        return Rates(lrs, device, lambda count: [])
    there = weakref.ref(optimizer)  # no circle: what holds a GPU's memory is to go at once

    def foresee(count: int) -> list[Row]:
        this = there()
        return [] if this is None else foreseen(this, group, count)

    return Rates(lrs, device, foresee)


# What is to come.


def foreseen(optimizer: ArrayOptimizer, group: int, count: int) -> list[Row]:
    """The learning rates of a group after each of the next steps of the optimizer's lr schedule.

    They are what torch's schedulers give: copies of them are run ahead. A schedule that calls a person's function, or
    goes by metrics, is not; nor one beside another.

    Args:
        optimizer: of an array.
        group: number of the group of parameters.
        count: the most steps.

    Returns:
        As many rows as can be told: until a schedule ends, or changes something else than learning rates.
    """
    schedulers = optimizer.schedulers()
    if len(schedulers) != 1 or not all(_known(member) for member in schedulers[0].members):
        return []
    pull(optimizer)
    columns = [_column(twin, stub, group, count) for twin, stub in schedulers[0].twins()]
    return [list(row) for row in zip(*columns, strict=False)]


def _column(twin: Any, stub: OptimizerStub, group: int, count: int) -> list[float]:
    others, found = _others(stub), []
    with caught_warnings():
        warnings.simplefilter("ignore")  # they have told the person already, or will
        with contextlib.suppress(ValueError):  # a schedule of so many steps has ended
            for _ in range(count):
                twin.step()
                if _others(stub) != others:  # momentum goes along
                    break
                found.append(float(stub.param_groups[group]["lr"]))
    return found


def _others(stub: OptimizerStub) -> list[dict[str, Any]]:
    return [{k: copy.copy(v) for k, v in g.items() if k not in ("params", "lr")} for g in stub.param_groups]


def _known(scheduler: Any) -> bool:
    """Whether running it ahead is sure to do nothing else, and to give what it will give."""
    if type(scheduler) in (reference.SequentialLR, reference.ChainedScheduler):
        return all(_known(inner) for inner in scheduler._schedulers)
    if type(scheduler) is reference.CyclicLR:
        return getattr(scheduler, "_scale_fn_custom", None) is None
    return type(scheduler) in _ALONE


_ALONE = frozenset({
    *(reference.StepLR, reference.MultiStepLR, reference.ConstantLR, reference.LinearLR, reference.ExponentialLR),
    *(reference.PolynomialLR, reference.CosineAnnealingLR, reference.CosineAnnealingWarmRestarts, reference.OneCycleLR),
})  # fmt: skip
