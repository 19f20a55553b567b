"""Torch's fused kernels over the members of an arena, with their arguments bound once.

Such a kernel takes lists of tensors and one value of each hyperparameter. Members that agree in them are one call, each
other group of members one more. Step counts are on the device, and so may be the members that a step leaves out: a
step reads nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from hfta_nb.optim.hyperparameters import HostColumn

Rows: TypeAlias = Sequence[Sequence[Sequence[Tensor]]]
"""By sort of tensor (parameters, gradients, states in order), by member: the tensors that are the member's."""


class Bind(Protocol):
    """Makes the call of a kernel."""

    def __call__(
        self, tensors: list[list[Tensor]], counts: list[Tensor], settings: Any, lr: float, found_inf: Tensor | None
    ) -> Callable[[], Any]:
        """A call for some members.

        Args:
            tensors: by sort, of all these members one after another.
            counts: which step it is, one number per tensor.
            settings: the hyperparameters that these members share, without the learning rate.
            lr: the learning rate.
            found_inf: on the device, 1 where the call is to do nothing; None for never.
        """


def available(parameters: Iterable[Tensor]) -> bool:
    """Whether torch has fused kernels of Adam, AdamW and SGD for these parameters."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


class FusedCalls:
    """One step of some tensors of all members.

    Args:
        bind: of the kernel.
        tensors: whose memory it is about: parameters, gradients, states.
        rows: the same as the kernel is to see them.
        settings: per member, hyperparameters without the learning rate.
        lrs: per member.
        steps: updates so far, per member.

    Attributes:
        counts: updates so far, ``[M]``, on the device.
    """

    def __init__(
        self,
        bind: Bind,
        tensors: Sequence[Tensor],
        rows: Rows,
        settings: Sequence[Hashable],
        lrs: Sequence[float],
        steps: HostColumn,
    ) -> None:
        self._bind, self._rows, self._settings, self._lrs = bind, rows, list(settings), list(lrs)
        self._places = [t.data_ptr() for t in tensors]
        self._device = tensors[0].device
        self.counts = torch.tensor(steps, dtype=torch.float32, device=self._device)
        # On the host, adding to memory is cheaper than a kernel.
        self._host = self.counts.numpy() if self._device.type == "cpu" else None
        self._together: list[Callable[[], Any]] | None = None
        self._alone: list[Callable[[], Any]] = []
        self._left = torch.empty(0)

    def over(self, tensors: Sequence[Tensor], settings: Sequence[Hashable], lrs: Sequence[float]) -> bool:
        """Whether this is about these tensors, settings and learning rates."""
        same = list(lrs) == self._lrs and list(settings) == self._settings
        return same and [t.data_ptr() for t in tensors] == self._places

    def __call__(self, skip: Tensor | None = None) -> None:
        """One step.

        Args:
            skip: ``[M]`` on the device, true for members that are left as they are; None for none.
        """
        if skip is not None:
            self._step_but(skip)
            return
        calls = self._together
        if calls is None:
            calls = self._together = self._grouped()
        if self._host is None:
            self.counts.add_(1)
        else:
            self._host += 1
        for call in calls:
            call()

    def _step_but(self, skip: Tensor) -> None:
        if not self._alone:
            self._left = torch.zeros_like(self.counts)
            every = range(len(self._lrs))
            self._alone = [self._call([i], self._left[i]) for i in every]
        self._left.copy_(skip)
        self.counts.add_(1).sub_(self._left)
        for call in self._alone:
            call()

    def _grouped(self) -> list[Callable[[], Any]]:
        """Members that agree share a call."""
        sharing: dict[Hashable, list[int]] = {}
        for i, key in enumerate(zip(self._settings, self._lrs, strict=True)):
            sharing.setdefault(key, []).append(i)
        return [self._call(members, None) for members in sharing.values()]

    def _call(self, members: Sequence[int], found_inf: Tensor | None) -> Callable[[], Any]:
        tensors = [[t for i in members for t in column[i]] for column in self._rows]
        counts = [c for i in members for c in [self.counts[i]] * len(self._rows[0][i])]
        first = members[0]
        return self._bind(tensors, counts, self._settings[first], self._lrs[first], found_inf)


def rows_of(tensors: Sequence[Tensor], places: Sequence[slice]) -> Rows:
    """What the kernel is to see of tensors ``[M, columns]``.

    The last entries of a tensor, which fill no vector of a CPU, are rounded in another way. In float64, where runs are
    compared to the last bit, the kernel gets what it would get of a plain module: the parameters, one by one. Else it
    gets a member's row, which is faster.

    Args:
        places: of the parameters.
    """
    exact = tensors[0].dtype == torch.float64
    return [[[row[place] for place in places] if exact else [row] for row in t.unbind(0)] for t in tensors]


def settings_of(values: Mapping[str, HostColumn], names: Sequence[str]) -> list[Hashable]:
    """Per member, its values of these hyperparameters."""
    columns = [[tuple(v) if isinstance(v, list) else v for v in values[n].tolist()] for n in names]
    return list(zip(*columns, strict=True))
