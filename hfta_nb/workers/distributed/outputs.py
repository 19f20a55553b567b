"""The outputs of the whole mini-batch, on every rank, and what is computed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray, fuse, per_member
from hfta_nb.engine.members.tree import flatten, tensor_map, unflatten
from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.rank_rows import bounds
from hfta_nb.workers.distributed.ranks import Ranks


class Outputs:
    """Every member's output of the whole mini-batch, put together from the ranks' rows.

    Every rank computes the loss of the same outputs, so that no loss has to be a mean over samples: class weights,
    ignored targets and pairs of samples give what they give on one device. Its rows of the loss's gradient by the
    outputs are where a rank's own backward begins.

    Args:
        own: what the array has returned for the rank's rows, each tensor ``[M, n, ...]``.
        sizes: how many rows each rank has.
        ranks: this one among the others.

    Raises:
        DistributedError: a tensor has no row per sample, or a rank is lost.
    """

    def __init__(self, own: Any, sizes: Sequence[int], ranks: Ranks) -> None:
        self._sizes, self._ranks = sizes, ranks
        self._pairs: list[tuple[Tensor, Tensor]] = []
        leaves, rebuild = flatten(own)
        self.whole = unflatten(rebuild, [self._gathered(v) if isinstance(v, Tensor) else v for v in leaves])

    def _gathered(self, own: Tensor) -> Tensor:
        start, stop = bounds(self._ranks.rank, self._sizes)
        if own.ndim < 2 or own.shape[1] != stop - start:
            raise DistributedError(
                "an output without a row per sample can't be put together from the ranks",
                where="the model's output",
                got=list(own.shape[1:]),
                accepted=f"[{stop - start}, ...]",
                remedy="return what has the samples in its first axis, or train on one device",
            )
        rows = own.detach().movedim(1, 0)[: self._sizes[self._ranks.rank]]
        padded = rows.new_zeros(max(self._sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [part[:size] for part, size in zip(self._ranks.gather(padded), self._sizes, strict=True)]
        whole = torch.cat(parts).movedim(0, 1).contiguous()
        if own.requires_grad:
            whole.requires_grad_()
            self._pairs.append((own, whole))
        return whole

    def backward(self, inputs: Sequence[Tensor] | None) -> None:
        """Differentiate this rank's rows, as far as the loss depends on them.

        Args:
            inputs: parameters that get gradients; None for all.
        """
        start, stop = bounds(self._ranks.rank, self._sizes)
        found = [(own, whole.grad) for own, whole in self._pairs if whole.grad is not None]
        if not found:
            return
        # A rank without samples has computed the first row, which does not count.
        counts = 1.0 if self._sizes[self._ranks.rank] else 0.0
        torch.autograd.backward(
            [own for own, _ in found], [grad[:, start:stop] * counts for _, grad in found], inputs=inputs
        )


class Through(nn.Module):
    """A model that returns its input."""

    def forward(self, output: Any) -> Any:
        return output


def through(array: FusedArray) -> FusedArray:
    """An array of as many members that returns its inputs: it evaluates functions of outputs that are there."""
    members = range(len(array))
    found = fuse([Through() for _ in members], seeds=list(members), verify="never")
    found.axes_known = True
    return found


def marked(whole: Any) -> Any:
    """Outputs as the input of `through`."""
    return {"output": tensor_map(lambda t: per_member(t.detach()), whole)}


class Part:
    """The loss of a function that returns a loss and something beside it, or what is beside it.

    Args:
        function: of one member's output and target.
        index: 0 for the loss.
    """

    def __init__(self, function: Callable[..., Any], index: int) -> None:
        self.function, self.index = function, index
        make = getattr(function, "target_per_member", None)
        if make is not None:
            self.target_per_member = make

    def __call__(self, output: Any, target: Any) -> Any:
        return self.function(output, target)[self.index]
