"""Torch's fused kernel of Adam over the rows of an arena.

The kernel takes a list of tensors and one value of each hyperparameter. Members that agree in them are one call, each
other group of members one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.optim.values import HostColumn

_NAMES = ("lr", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")


class FusedRows:
    """The rows of parameters, gradients and moments.

    Args:
        tensors: ``[M, P]`` each: parameters, gradients, first and second moments and, of amsgrad, the largest second.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._places = [t.data_ptr() for t in tensors]
        # Rows, as columns of an arena are not contiguous; the whole where it is.
        self._whole = [[t] for t in tensors] if all(t.is_contiguous() for t in tensors) else None
        self._rows = [list(t.unbind(0)) for t in tensors]
        self._device = tensors[0].device
        self._known: list[Any] = []
        self._calls: list[tuple[Callable[..., Any], list[list[Tensor]], int]] = []

    def over(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the rows of the tensors."""
        return [t.data_ptr() for t in tensors] == self._places

    def step(self, values: Mapping[str, HostColumn], steps: HostColumn) -> None:
        """One step of all members.

        Args:
            values: hyperparameters by name, ``[M]`` or ``[M, 2]``.
            steps: which step it is, from 1, ``[M]``.
        """
        apart = (steps - steps[0]).tobytes()  # how far apart members are stays the same
        known = [apart, *(id(values[n]) for n in (*_NAMES, "betas"))]
        if known != self._known:
            self._kept = [values[n] for n in (*_NAMES, "betas")]  # alive: other arrays have other numbers
            self._known, self._calls = known, self._grouped(values, steps)
        for kernel, tensors, first in self._calls:
            at = torch.full((), float(steps[first]), device=self._device)
            kernel(*tensors, [at] * len(tensors[0]))

    def _grouped(
        self, values: Mapping[str, HostColumn], steps: HostColumn
    ) -> list[tuple[Callable[..., Any], list[list[Tensor]], int]]:
        columns = [*(values[n].tolist() for n in _NAMES), *values["betas"].T.tolist(), steps.tolist()]
        groups: dict[Any, list[int]] = {}
        for row, settings in enumerate(zip(*columns, strict=True)):
            groups.setdefault(settings, []).append(row)
        found: list[tuple[Callable[..., Any], list[list[Tensor]], int]] = []
        for (lr, eps, decay, amsgrad, maximize, apart, beta1, beta2, _), members in groups.items():
            every = self._whole if len(members) == len(steps) else None
            tensors = every or [[column[i] for i in members] for column in self._rows]
            tensors = [*tensors[:4], tensors[4] if amsgrad else []]
            numbers = {"lr": lr, "eps": eps, "weight_decay": decay, "beta1": beta1, "beta2": beta2}
            kernel = torch._fused_adamw_ if apart else torch._fused_adam_
            found.append((partial(kernel, **numbers, amsgrad=amsgrad, maximize=maximize), tensors, members[0]))
        return found
