"""Gradients of several mini-batches, added up for one optimizer step.

A loss counts one part in `every`, as in Lightning, so a full group steps by the mean of its gradients. The last group
of an epoch steps as well, however many mini-batches it has.

A built-in loss is a mean over the targets that are known. Where some are missing, a mini-batch counts by its share of
known targets, so that the gradient is that of a mean over the known targets of the whole group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import own_names
from hfta_nb.errors import OptimError
from hfta_nb.train.step.own_rows import own_rows, put_own_rows
from hfta_nb.train.step.step_protocol import Row

AXIS = "accumulate_grad_batches"


def every_of(row: Row) -> int:
    """How many mini-batches make one optimizer step."""
    return int(row.get(AXIS) or 1)


def updates(row: Row, batches: int, length: int | None) -> int:
    """Optimizer steps that so many mini-batches have made.

    Args:
        row: of a member.
        batches: since it began.
        length: mini-batches of an epoch, where that is known.
    """
    every = every_of(row)
    epochs, rest = divmod(batches, length) if length else (0, batches)
    return epochs * -(-(length or 0) // every) + rest // every


def check_accumulated(row: Row, several: bool) -> None:
    """See that gradients can be added up.

    Args:
        row: of a member.
        several: whether a step has phases.

    Raises:
        OptimError: several optimizers take turns, or one evaluates the loss itself.
    """
    if every_of(row) > 1 and (several or row["optimizer"] == "lbfgs"):
        what = "a family with phases" if several else "lbfgs"
        raise OptimError(f"{what} does not add up gradients", where=AXIS, got=every_of(row), accepted="1",
                         remedy="give a larger batch_size instead")  # fmt: skip


def weight_of(shares: Tensor, count: int) -> Tensor:
    """What the gradients of a group are multiplied by: 1 where no target of its `count` mini-batches is missing, 0
    where all are."""
    return torch.where(shares > 0, count / torch.where(shares > 0, shares, 1), 0)


def _times(grad: Tensor, factor: Tensor | None) -> Tensor:
    """A gradient ``[M, *shape]`` times a factor for each member."""
    if factor is None:
        return grad
    return grad * factor.to(grad.device, grad.real.dtype if grad.is_complex() else grad.dtype).view(
        -1, *[1] * (grad.ndim - 1)
    )


class Accumulation:
    """The gradients of an array that no optimizer step has used yet.

    Attributes:
        every: mini-batches of a full group.
        members: M.
        count: mini-batches so far.
        sums: by parameter, ``[M, *shape]``.
        shares: sums of the mini-batches' shares of known targets, float64 ``[M]``; None where losses do not say.
        lacking: by parameter, members that no gradient has come for.
    """

    def __init__(self, every: int, members: int) -> None:
        self.every, self.members, self.count = every, members, 0
        self.sums: dict[str, Tensor] = {}
        self.lacking: dict[str, set[int]] = {}
        self.shares: Tensor | None = None

    @torch.no_grad()
    def take(self, array: FusedArray, share: Tensor | None = None) -> bool:
        """Take the gradients of a mini-batch; whether the group is full.

        Args:
            array: whose gradients they are.
            share: of the targets that are known, ``[]`` or ``[M]``; None where the loss does not say.
        """
        if share is not None:
            share = share.expand(self.members)
            self.shares = share.clone() if self.shares is None else self.shares + share
        for name, p in array.named_parameters():
            if p.grad is None:
                continue
            grad = p.grad.to_dense() if p.grad.is_sparse and share is not None else p.grad
            part, missing = _times(grad / self.every, share), set(array.missing_grads.get(name, ()))
            self.lacking[name] = self.lacking.get(name, set(range(len(array)))) & missing
            self.sums[name] = self.sums[name].add_(part) if name in self.sums else part
        self.count += 1
        return self.count == self.every

    def put(self, array: FusedArray) -> None:
        """Give the sums to the parameters, for an optimizer's step; nothing is left."""
        factor = None if self.shares is None else weight_of(self.shares, self.count)
        for name, p in array.named_parameters():
            p.grad = _times(self.sums[name], factor) if name in self.sums else None
        array.missing_grads.clear()
        array.missing_grads.update({name: sorted(lacking) for name, lacking in self.lacking.items() if lacking})
        self.clear()

    def clear(self) -> None:
        self.count, self.sums, self.lacking, self.shares = 0, {}, {}, None

    def select(self, indices: Sequence[int]) -> Accumulation:
        """Those of these members."""
        made = Accumulation(self.every, len(indices))
        made.count = self.count
        made.shares = None if self.shares is None else self.shares[list(indices)]
        made.sums = {name: value[list(indices)] for name, value in self.sums.items()}
        made.lacking = {n: {k for k, i in enumerate(indices) if i in old} for n, old in self.lacking.items()}
        return made

    def state(self, array: FusedArray) -> dict[str, Any]:
        members = [self._of(array, i) for i in range(self.members)] if self.count else []
        shares = {} if self.shares is None else {"shares": self.shares}
        return {"every": self.every, "count": self.count, "members": members, **shares}

    def load_state(self, state: Mapping[str, Any] | None, array: FusedArray) -> None:
        """Take what `state` gave; of groups of another size nothing."""
        self.clear()
        if state is None or state["every"] != self.every:
            return
        for index, rows in enumerate(state["members"]):
            self._put(array, index, rows)
        self.count = int(state["count"])
        if "shares" in state:
            self.shares = state["shares"].to(array.generators.device, copy=True)

    def take_member(self, array: FusedArray, place: int, other: Accumulation, source: FusedArray, src: int) -> None:
        """A member goes on with the gradients of member `src` of another array, which is as far in its group."""
        self._put(array, place, other._of(source, src))
        self.count = other.count
        if other.shares is not None:
            shares = other.shares.new_zeros(self.members) if self.shares is None else self.shares.clone()
            shares[place] = other.shares[src]
            self.shares = shares

    def _of(self, array: FusedArray, index: int) -> dict[str, Tensor]:
        """The sums of a member, without padding; none for parameters that no gradient has come for."""
        lacking = {name for name, members in self.lacking.items() if index in members}
        return own_rows(array, index, {name: value for name, value in self.sums.items() if name not in lacking})

    def _put(self, array: FusedArray, index: int, rows: Mapping[str, Tensor]) -> None:
        names = own_names(array, index)
        for name in {names[plain] for plain in rows} - self.sums.keys():
            self.sums[name] = torch.zeros_like(array.get_parameter(name).detach())
            self.lacking[name] = set(range(self.members))
        put_own_rows(array, index, self.sums, rows)
        for plain in rows:
            self.lacking[names[plain]].discard(index)
