"""Lr schedulers made of lr schedulers of the same array optimizer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import lr_scheduler as reference

from hfta_nb.engine.array import in_full
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import takes
from hfta_nb.optim.hyperparameters import rows_of
from hfta_nb.optim.lr_base import ArrayLRScheduler, Factory
from hfta_nb.optim.optimizer_base import ArrayOptimizer


class _Composite(ArrayLRScheduler):
    """Schedulers made of schedulers of the same array optimizer."""

    schedulers: list[ArrayLRScheduler]

    @takes(OptimError)
    def __init__(self, optimizer: ArrayOptimizer, schedulers: Sequence[ArrayLRScheduler], factories: Sequence[Factory]):
        self.schedulers = list(schedulers)
        super().__init__(optimizer, factories)
        for scheduler in self.schedulers:
            optimizer.unfollow(scheduler)  # from now on they come along with this one

    @contextmanager
    def _alone(self, index: int) -> Iterator[None]:
        with ExitStack() as stack:
            for scheduler in self.schedulers:
                stack.enter_context(scheduler._alone(index))
            yield

    @staticmethod
    def _check(where: str, optimizer: Any, schedulers: Any) -> None:
        if not isinstance(schedulers, Sequence) or not schedulers:
            raise OptimError("no schedulers", where=where, got=schedulers, accepted="a list of array schedulers")
        for k, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, ArrayLRScheduler) or scheduler.optimizer is not optimizer:
                raise OptimError("not a scheduler of this optimizer", where=f"{where}, scheduler {k}", got=scheduler)

    def reset_member(self, index: int) -> None:
        for scheduler in self.schedulers:
            scheduler.reset_member(index)
        super().reset_member(index)

    def copy_member(self, src: int, dst: int) -> None:
        for scheduler in self.schedulers:
            scheduler.copy_member(src, dst)
        memo = {id(s.members[src]): s.members[dst] for s in self.schedulers}
        self.members[dst] = self._copied(src, self.optimizer.stubs[dst], memo)
        self._before[dst] = copy.deepcopy(self._before[src])
        self._relink(dst)

    def _relink(self, index: int) -> None:
        """The member's schedulers within are those of `schedulers`, which surgery may have replaced."""
        self.members[index]._schedulers = [s.members[index] for s in self.schedulers]  # type: ignore[attr-defined]

    def _inherit(
        self, parts: Sequence[tuple[ArrayLRScheduler, list[int]]], origins: Sequence[tuple[ArrayLRScheduler, int]]
    ) -> None:
        columns = [s.schedulers for s, _ in parts if isinstance(s, _Composite)]
        if len(columns) < len(parts) or len({len(c) for c in columns}) > 1:
            raise OptimError(
                "schedulers made of other schedulers", where=type(self).__name__, got=[s for s, _ in parts]
            )
        self.schedulers = []
        for inner in zip(*columns, strict=True):
            rows = [(s, r) for s, (_, r) in zip(inner, parts, strict=True)]
            made = inner[0]._merged(rows, self.optimizer)
            self.optimizer.unfollow(made)
            self.schedulers.append(made)
        self._origins = list(origins)

    def _memo(self, index: int) -> dict[int, Any]:
        source, i = self._origins[index]
        assert isinstance(source, _Composite)  # `_inherit` has seen to it
        return {
            id(old.members[i]): new.members[index] for old, new in zip(source.schedulers, self.schedulers, strict=True)
        }


class SequentialLR(_Composite):
    """One scheduler after the other, from the `milestones` on; a list of lists of milestones is one per member.

    Args:
        optimizer: of an array.
        schedulers: array schedulers of that optimizer.
        milestones: one fewer than schedulers.

    Source: `torch.optim.lr_scheduler.SequentialLR`.
    """

    @takes(OptimError)
    def __init__(
        self, optimizer: ArrayOptimizer, schedulers: Sequence[ArrayLRScheduler], milestones: Any, last_epoch: Any = -1
    ) -> None:
        schedulers = in_full(schedulers)
        self._check("SequentialLR", optimizer, schedulers)
        members = len(optimizer.array)
        points = rows_of("milestones", milestones, members, True)
        last = rows_of("last_epoch", last_epoch, members, False)
        self._points = list(zip(points, last, strict=True))
        super().__init__(optimizer, schedulers, [self._factory(p) for p in self._points] if members else [])

    def _factory(self, point: tuple[Any, Any]) -> Factory:
        return functools.partial(reference.SequentialLR, schedulers=[], milestones=point[0], last_epoch=point[1])

    def _make(self, index: int) -> reference.LRScheduler:
        inner = [s.members[index] for s in self.schedulers]
        kept: Any = self._factories[index]
        self._factories[index] = functools.partial(kept, schedulers=inner)
        try:
            return super()._make(index)
        finally:
            self._factories[index] = kept


class ChainedScheduler(_Composite):
    """All schedulers at every step.

    Args:
        schedulers: array schedulers of one optimizer.
        optimizer: that optimizer; may be left out.

    Source: `torch.optim.lr_scheduler.ChainedScheduler`.
    """

    @takes(OptimError)
    def __init__(self, schedulers: Sequence[ArrayLRScheduler], optimizer: ArrayOptimizer | None = None) -> None:
        schedulers = in_full(schedulers)
        first = schedulers[0] if isinstance(schedulers, Sequence) and schedulers else None
        optimizer = getattr(first, "optimizer", None) if optimizer is None else optimizer
        self._check("ChainedScheduler", optimizer, schedulers)
        assert optimizer is not None  # `_check` has seen to it
        super().__init__(optimizer, schedulers, [self._chained] * len(optimizer.array))

    @staticmethod
    def _chained(optimizer: torch.optim.Optimizer, schedulers: Any = ()) -> reference.LRScheduler:
        return reference.ChainedScheduler(schedulers, optimizer)

    def _make(self, index: int) -> reference.LRScheduler:
        return self._chained(self.optimizer.stubs[index], [s.members[index] for s in self.schedulers])
