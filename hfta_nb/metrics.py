"""Metrics by task. A metric sees ONE member's output and the target; it returns a scalar, a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from hfta_nb.errors import FamilyError


@dataclass(frozen=True)
class Metric:
    """A metric and which way is better.

    Attributes:
        function: from one member's output ``[N, ...]`` and target ``[N, ...]`` to a scalar, a mean over N.
        maximize: whether more is better (a score); an error is minimised.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    maximize: bool = True

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.function(output, target)


def _accuracy(output: Float[Tensor, "N *rest classes"], target: Int[Tensor, " N *rest"]) -> Float[Tensor, ""]:
    return (output.argmax(-1) == target).to(output.dtype).mean()


def _mae(output: Float[Tensor, " N *rest"], target: Float[Tensor, " N *rest"]) -> Float[Tensor, ""]:
    return (output - target).abs().mean()


accuracy = Metric(_accuracy)
"""Fraction of samples whose largest output is the target class; output ``[N, classes]``, target ``[N]``."""

mae = Metric(_mae, maximize=False)
"""Mean absolute error; output and target ``[N, ...]``."""

BY_TASK: dict[str, dict[str, Metric]] = {"classification": {"accuracy": accuracy}, "regression": {"mae": mae}}


def checked(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Named metrics; a plain callable counts as a score (more is better).

    Raises:
        FamilyError: one of them can't be called, or has the name of the loss.
    """
    found = {}
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name == "loss":
            raise FamilyError("not a name for a metric", got=name, accepted="an identifier other than loss")
        if not callable(metric):
            raise FamilyError(
                "not a metric", where=name, got=metric, accepted="a callable of (output, target), or Metric"
            )
        found[name] = metric if isinstance(metric, Metric) else Metric(metric)
    return found
