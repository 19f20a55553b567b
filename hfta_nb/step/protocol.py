"""What the training loop knows of a step, fused or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from hfta_nb.losses import Loss
from hfta_nb.metrics import Metric

Scores: TypeAlias = dict[str, Tensor]
"""Per metric ("loss" first), one value per member: tensors ``[M]`` on the device."""

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

    def evaluate(self, x: Tensor, y: Tensor) -> Scores:
        """Loss and metrics without training."""

    def select(self, indices: Sequence[int]) -> Step:
        """The step of these members alone, their state unchanged."""

    def weights(self) -> dict[str, Tensor]:
        """The `state_dict` of the plain module, each tensor with a leading member axis. Not copied."""

    def state(self) -> dict[str, Any]:
        """All that is needed to carry on: a tree of tensors and plain data."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""


def scorer(loss: Loss, metrics: Mapping[str, Metric]) -> Callable[[Tensor, Tensor], tuple[Tensor, Scores]]:
    """A function of one member's output and target: the loss, and all scores without gradient."""

    def score(output: Tensor, target: Tensor) -> tuple[Tensor, Scores]:
        value = loss(output, target)
        still = output.detach()
        return value, {name: metric(still, target) for name, metric in metrics.items()}

    return score
