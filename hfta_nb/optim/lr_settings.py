"""Lr schedulers of torch's classes, with one value of each setting per member."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.lr_base import ArrayLRScheduler, rows_of
from hfta_nb.optim.values import refused_tuple


class TorchLRScheduler(ArrayLRScheduler):
    """A class of torch's with settings."""

    torch_class: ClassVar[Any]
    lists: ClassVar[tuple[str, ...]] = ()
    by_group: ClassVar[tuple[str, ...]] = ()
    """Settings of which torch takes one value per parameter group: a tuple is that."""

    def __init__(self, optimizer: ArrayOptimizer, **settings: Any) -> None:
        if not isinstance(optimizer, ArrayOptimizer):
            super().__init__(optimizer, [])
        members = len(optimizer.array)
        rows = {name: rows_of(name, value, members, name in self.lists) for name, value in settings.items()}
        for name, values in rows.items():
            self._check(name, values)
        kind = self.torch_class
        super().__init__(
            optimizer, [functools.partial(kind, **{k: v[i] for k, v in rows.items()}) for i in range(members)]
        )

    def _check(self, name: str, values: Sequence[Any]) -> None:
        """See that each member's value is one: torch's constructors take what its `step` can't use.

        Raises:
            OptimError: one is a tuple, a list or a dict where one value is wanted, a number that is not finite, or a
                period of 0.
        """
        if name in self.lists:
            return
        where = f"{type(self).__name__}, {name}"
        for value in values:
            if isinstance(value, tuple) and name not in self.by_group:
                raise refused_tuple("not one value", where, value, "one value, or one per member")
            if isinstance(value, list | dict | set | Tensor):
                raise OptimError("not one value", where=where, got=value, accepted="one value, or one per member")
            if isinstance(value, str) and name not in _WORDS:
                raise OptimError("not a number", where=where, got=value, accepted="a number, or one per member")
            if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and name not in _ENDLESS)):
                raise OptimError("not a finite number", where=where, got=value, accepted="a finite number")
            if name in _PERIODS and value == 0:
                raise OptimError("a period of 0", where=where, got=value, accepted="at least 1")


_PERIODS = ("step_size", "T_max")
"""Settings by which torch's `step` divides."""

_ENDLESS = ("patience", "cooldown", "threshold")
"""Settings that may be infinite."""

_WORDS = ("mode", "scale_mode", "threshold_mode", "anneal_strategy")
"""Settings that are words."""
