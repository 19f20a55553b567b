"""What another process needs to build the same array step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import fuse
from hfta_nb.engine.array.access import checkpoint, untimed_block_size
from hfta_nb.errors import DistributedError
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import ArrayStep, Objective, Precision
from hfta_nb.train.step.step_protocol import Row


@dataclass(frozen=True)
class Recipe:
    """A step of an array that has not trained yet.

    Attributes:
        modules: the members, as plain modules.
        rows, objective, epochs, steps_per_epoch: as for `ArrayStep`.
        metrics: whether rank 0 evaluates some. The other ranks compute nothing of them, but take part in the exchange.
        precision: its name.
        strategy, verify, fast_rng, capture, checkpointed: settings of the array.
        batch_norm: see `DataParallel`.
    """

    modules: Sequence[nn.Module]
    rows: Sequence[Row]
    objective: Objective
    metrics: bool
    epochs: int
    steps_per_epoch: int | None
    precision: str
    strategy: str
    verify: str
    fast_rng: bool
    capture: bool
    checkpointed: bool
    batch_norm: str

    @classmethod
    def of(cls, step: ArrayStep, batch_norm: str) -> Recipe:
        """Of a step.

        Raises:
            DistributedError: it mixes inputs with others of the mini-batch, of which each rank has a part.
        """
        array = step.array
        if any("kept" in update.settings for update in step.updates):
            raise DistributedError("each rank has a part of the mini-batch, whose inputs are mixed", where="weaken",
                                   accepted="one device", remedy="leave out weaken and weaken_gamma")  # fmt: skip
        rows, objective, metrics, epochs, steps_per_epoch = step.definition
        settings = array.strategy, array.verify, array.fast_rng, array.capture, array.settings.checkpointed
        modules = [array[i].cpu() for i in range(len(array))]
        return cls(
            modules, rows, objective, bool(metrics), epochs, steps_per_epoch, step.precision.name, *settings, batch_norm
        )

    def build(self, device: torch.device) -> ArrayStep:
        """The step, on a device."""
        array = fuse([module.to(device) for module in self.modules], verify=self.verify)
        array.strategy, array.fast_rng, array.capture = self.strategy, self.fast_rng, self.capture
        array.block_size = untimed_block_size(array)
        if self.checkpointed:
            checkpoint(array, True)
        precision = Precision(self.precision, device)
        return ArrayStep(array, self.rows, self.objective, self.beside(), self.epochs, precision, self.steps_per_epoch)

    def beside(self) -> dict[str, Metric]:
        """What a rank beside rank 0 computes where that evaluates metrics."""
        return {"nothing": Metric(_nothing, additive=True)} if self.metrics else {}


def _nothing(output: Any, target: Any) -> Tensor:
    return torch.zeros(())
