"""A loss, or a metric, that sees the outputs of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hfta_nb.distributed.operators import gather_rows
from hfta_nb.errors import DistributedError
from hfta_nb.members.tree import tensor_map


class Gathered:
    """A function of one member's output of the whole mini-batch, called with a rank's rows of it.

    Every rank computes the function of the same outputs, so that no loss has to be a mean over samples: class weights,
    ignored targets, ranks and pairs within a mini-batch give what they give on one device.

    Args:
        function: of the output and the target.
        sizes: how many rows each rank has.
        rank: of this process.
        ranks: the name of the ranks.
    """

    def __init__(self, function: Callable[..., Any], sizes: Sequence[int], rank: int, ranks: str) -> None:
        self.function, self.sizes, self.ranks = function, tuple(sizes), ranks
        self.rows = max(1, sizes[rank])
        make = getattr(function, "target_per_member", None)
        if make is not None:
            self.target_per_member = make

    def __call__(self, output: Any, target: Any) -> Any:
        return self.function(tensor_map(self._gathered, output), target)

    def _gathered(self, output: Tensor) -> Tensor:
        if not output.ndim or output.shape[0] != self.rows:
            raise DistributedError(
                "an output without a row per sample can't be put together from the ranks",
                where="the model's output",
                got=list(output.shape),
                accepted=f"[{self.rows}, ...]",
                remedy="return what has the samples in its first axis, or train on one device",
            )
        return gather_rows(output, self.sizes, self.ranks)
