"""Lr schedulers of torch's classes, with one value of each setting per member."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.errors.border import FUNCTION, TEXT, TRUTH, WHOLE, Kind, number, takes
from hfta_nb.optim.hyperparameters import refused_tuple, rows_of
from hfta_nb.optim.lr_base import ArrayLRScheduler
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.torch_arguments import TorchArguments


class TorchLRScheduler(TorchArguments, ArrayLRScheduler):
    """A class of torch's with its settings."""

    lists: ClassVar[tuple[str, ...]] = ()
    by_group: ClassVar[tuple[str, ...]] = ()
    """Settings of which torch takes one value per parameter group: a tuple is that."""

    @takes(OptimError)
    def __init__(self, optimizer: ArrayOptimizer, *args: Any, **kwargs: Any) -> None:
        if not isinstance(optimizer, ArrayOptimizer):
            super().__init__(optimizer, [])
        members = len(optimizer.array)
        settings = self.arguments(optimizer, *args, **kwargs)
        del settings["optimizer"]
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
                period below 1.
        """
        if name in self.lists:
            return
        where = f"{type(self).__name__}, {name}"
        for value in values:
            if isinstance(value, tuple) and name not in self.by_group:
                raise refused_tuple("not one value", where, value, "one value, or one per member")
            if isinstance(value, list | dict | set | Tensor):
                raise OptimError("not one value", where=where, got=value, accepted="one value, or one per member")
            kind = _KINDS.get(name, _FINITE)
            for one in value if isinstance(value, tuple) else (value,):
                if not kind.accepts(one):
                    raise OptimError(kind.what, where=where, got=value, accepted=f"{kind.accepted}, or one per member")


def _finite(value: Any) -> bool:
    return number(value) and math.isfinite(value)


_FINITE = Kind("not a finite number", "a finite number", _finite)
_PERIOD = Kind("not a period", "a number, at least 1", lambda v: _finite(v) and v >= 1)
_PATIENCE = Kind("not a number", "a number", lambda v: number(v) and v <= math.inf)
_RATE = Kind("not a learning rate", "a finite number, at least 0", lambda v: _finite(v) and v >= 0)
_FACTOR = Kind("not a finite number from 0 on", "a finite number, at least 0", _RATE.accepts)
_KINDS = {
    "gamma": _FACTOR,
    **{"step_size": _PERIOD, "T_max": _PERIOD, "step_size_up": _PERIOD, "step_size_down": _PERIOD.or_none},
    **dict.fromkeys(("patience", "cooldown", "threshold"), _PATIENCE),  # which may be infinite
    **dict.fromkeys(("eta_min", "min_lr", "base_lr", "max_lr"), _RATE),
    **dict.fromkeys(("total_steps", "epochs", "steps_per_epoch"), WHOLE.or_none),
    **{"last_epoch": WHOLE, "T_0": WHOLE, "T_mult": WHOLE, "scale_fn": FUNCTION.or_none, "lr_lambda": FUNCTION},
    **{"mode": TEXT, "scale_mode": TEXT, "threshold_mode": TEXT, "anneal_strategy": TEXT},
    **{"cycle_momentum": TRUTH, "three_phase": TRUTH},
}
"""What one member's setting may be: torch's constructors take what their first steps fail of."""
