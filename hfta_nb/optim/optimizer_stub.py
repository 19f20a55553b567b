"""A stand-in for one member's optimizer, for torch's lr schedulers; see `stub_values`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class OptimizerStub(torch.optim.Optimizer):
    """Groups of values without parameters that learn."""

    _opt_called = True  # torch warns where a scheduler outruns its optimizer, which never steps here

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__([{"params": [nn.Parameter(torch.zeros(()))], **g} for g in groups], dict(defaults))

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """There is nothing to do."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # so that no scheduler wraps it, once for each copy

    def copied(self) -> OptimizerStub:
        """Another one with the same values."""
        groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in self.param_groups]
        return OptimizerStub(groups, self.defaults)
