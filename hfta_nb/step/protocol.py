"""What the training loop knows of a step, fused or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from hfta_nb.array.tree import tensor_map
from hfta_nb.losses import Loss
from hfta_nb.metrics import Metric

Scores: TypeAlias = dict[str, Tensor]
"""Per metric ("loss" first), one value per member: tensors ``[M]`` on the device; of a metric with a `finish` its sums,
``[M, ...]``."""

Row: TypeAlias = Mapping[str, Any]
"""The values of all training axes of one member."""


class Step(Protocol):
    """One training step of some members, and the state that it changes."""

    def __len__(self) -> int:
        """How many members."""

    def train(self, x: Any, y: Any) -> Scores:
        """One optimizer step of each member on a mini-batch; `x` and `y` may be `per_member`."""

    def end_epoch(self) -> None:
        """Let the lr schedulers go on."""

    def evaluate(self, x: Any, y: Any) -> Scores:
        """Loss and metrics without training."""

    def select(self, indices: Sequence[int]) -> Step:
        """The step of these members alone, their state unchanged."""

    def weights(self) -> dict[str, Tensor]:
        """The `state_dict` of the plain module, each tensor with a leading member axis. Not copied.

        Members of different architecture have a common one, padded; `narrower` gives the way back.
        """

    def narrower(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """A function from a member's row of `weights` to the `state_dict` of its plain module."""

    def state(self) -> dict[str, Any]:
        """All that is needed to carry on: a tree of tensors and plain data."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""


def scorer(loss: Loss, metrics: Mapping[str, Metric]) -> Callable[[Any, Any], tuple[Tensor, Scores]]:
    """A function of one member's output and target: the loss, and all scores without gradient."""

    def score(output: Any, target: Any) -> tuple[Tensor, Scores]:
        value = loss(output, target)
        still = tensor_map(Tensor.detach, output)
        return value, {name: metric.function(still, target) for name, metric in metrics.items()}

    return score
