"""lr schedulers with one setting per member.

Each member has a scheduler of `torch.optim.lr_scheduler` of its own, over an optimizer that holds
nothing but its lr, so that a member's lr is what torch says it is, to the last digit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as reference

from hfta_nb.array import PerMember
from hfta_nb.errors import OptimError
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.values import Values


class ArrayLRScheduler:
    """Base: sets the optimizer's lr, per member, as torch's scheduler of the same name would.

    Args:
        optimizer: of an array.
        settings: arguments of torch's scheduler; each one value, a list with one per member, or `per_member`. Where
            torch itself takes a list, a list is one value.
    """

    torch_class: type[reference.LRScheduler]

    def __init__(self, optimizer: ArrayOptimizer, **settings: Any) -> None:
        self.optimizer = optimizer
        members = len(optimizer.array)
        rows = {name: _rows(name, value, members) for name, value in settings.items()}
        lrs = optimizer.initial["lr"].per_member
        self._members = [self._make(lrs[i], {k: v[i] for k, v in rows.items()}, i) for i in range(members)]
        self._write()

    def _make(self, lr: float, settings: dict[str, Any], index: int) -> reference.LRScheduler:
        carrier = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=float(lr))
        try:
            return self.torch_class(carrier, **settings)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            where = f"{type(self).__name__}, member {index}"
            raise OptimError(str(error), where=where, got=settings) from error

    def step(self) -> None:
        """Go one step (as a rule: one epoch) on."""
        for member in self._members:
            member.optimizer.step()  # carries no gradient; torch warns when schedulers outrun optimizers
            member.step()
        self._write()

    def get_last_lr(self) -> list[float]:
        """The lr of each member."""
        return [float(m.get_last_lr()[0]) for m in self._members]

    def select(self, indices: list[int], optimizer: ArrayOptimizer) -> ArrayLRScheduler:
        """These members' schedulers, for the optimizer of an array that has just them."""
        other = object.__new__(type(self))
        other.optimizer = optimizer
        other._members = [copy.deepcopy(self._members[i]) for i in indices]
        other._write()
        return other

    def state_dict(self) -> dict[str, Any]:
        """Per member, the state of torch's scheduler and its lr."""
        return {"members": [m.state_dict() for m in self._members], "lr": self.get_last_lr()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave.

        Raises:
            OptimError: it is of another number of members.
        """
        if len(state["members"]) != len(self._members):
            raise OptimError("another number of members", where=type(self).__name__, got=len(state["members"]))
        for member, saved, lr in zip(self._members, state["members"], state["lr"], strict=True):
            member.load_state_dict(saved)
            member.optimizer.param_groups[0]["lr"] = lr
        self._write()

    def _write(self) -> None:
        self.optimizer.hyper["lr"] = Values(self.get_last_lr())


class StepLR(ArrayLRScheduler):
    """Every `step_size` epochs, lr times `gamma`. Source: `torch.optim.lr_scheduler.StepLR`."""

    torch_class = reference.StepLR

    def __init__(self, optimizer: ArrayOptimizer, step_size: Any, gamma: Any = 0.1) -> None:
        super().__init__(optimizer, step_size=step_size, gamma=gamma)


class CosineAnnealingLR(ArrayLRScheduler):
    """Half a cosine from lr to `eta_min` in `T_max` epochs. Source: `torch.optim.lr_scheduler.CosineAnnealingLR`."""

    torch_class = reference.CosineAnnealingLR

    def __init__(self, optimizer: ArrayOptimizer, T_max: Any, eta_min: Any = 0.0) -> None:  # noqa: N803
        super().__init__(optimizer, T_max=T_max, eta_min=eta_min)


def _rows(name: str, value: Any, members: int) -> list[Any]:
    if isinstance(value, PerMember):
        value = list(value.value.tolist() if isinstance(value.value, Tensor) else value.value)
    elif not isinstance(value, list):
        return [value] * members
    if len(value) != members:
        raise OptimError(
            "not one value per member", where=name, got=value, accepted=f"one value, or a list of {members}"
        )
    return list(value)
