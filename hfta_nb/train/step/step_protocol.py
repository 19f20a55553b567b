"""What the training loop knows of a step, fused or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from hfta_nb.engine import broadcasts
from hfta_nb.engine.array.access import Arguments, call_module, tensor_map
from hfta_nb.models import imbalance
from hfta_nb.models.losses import Loss, Target
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase
from hfta_nb.train.step.metric_calls import measured
from hfta_nb.train.step.precision import whole

Objective: TypeAlias = Loss | Sequence[Phase]
"""What is minimised: one loss, or the phases of a step, each with its own."""

Scores: TypeAlias = dict[str, Tensor]
"""Per metric ("loss" first), one value per member: tensors ``[M]`` on the device; of a metric with a `finish` its sums,
``[M, ...]``. Of a step with phases "loss" is the sum of theirs, and each phase's own stands beside it; in training
there is nothing else."""

OUTPUT = "the output"
"""Among the scores of a validation batch, the outputs: a tree of tensors ``[M, N, ...]``, for metrics of whole sets."""

Row: TypeAlias = Mapping[str, Any]
"""The values of all training axes of one member."""


class ScoreSink(Protocol):
    """Keeps what training steps give."""

    def take(self, scores: Scores, y: Any) -> None:
        """Take in the scores of a step with targets `y`, which may be `per_member`.

        Where there is a `guard`, this calls kernels alone, always on the same memory, and reads nothing back.
        """

    def guard(self) -> object | None:
        """The same object for as long as `take` works on the same memory; None where it can't be captured."""

    def tensors(self) -> list[Tensor]:
        """What `take` changes."""


class Step(Protocol):
    """One training step of some members, and the state that it changes."""

    def __len__(self) -> int:
        """How many members."""

    def measuring(self, member: int, function: Any) -> AbstractContextManager[None]:
        """The context in which a metric of a whole set is computed for a member: with its random streams, and what the
        metric keeps for it."""

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        """One optimizer step of each member (one per phase) on a mini-batch; `x` and `y` may be `per_member`.

        Args:
            keep: takes the scores, as part of the step; nothing is returned then.
        """

    def end_epoch(self) -> None:
        """Let the lr schedulers that count epochs go on."""

    def end_validation(self, values: Sequence[float]) -> None:
        """Let the lr schedulers that follow a metric go on.

        Args:
            values: per member, the monitored metric, lower is better.
        """

    def step_lr_schedulers(self) -> None:
        """Let the lr schedulers go on by one, whether they count epochs or steps; not those that follow a metric."""

    def evaluate(self, x: Any, y: Any) -> Scores:
        """Loss and metrics without training."""

    def scales(self) -> Tensor | None:
        """The loss scales ``[M]`` of now; None where losses are not scaled."""

    def select(self, indices: Sequence[int]) -> Step:
        """The step of these members alone, their state unchanged."""

    def weights(self) -> dict[str, Tensor]:
        """The `state_dict` of the plain module, each tensor with a leading member axis. Not copied.

        Members of different architecture have a common one, padded; `unpad` gives the way back.
        """

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """A function from a member's row of `weights` to the `state_dict` of its plain module."""

    def state(self) -> dict[str, Any]:
        """All that is needed to carry on: a tree of tensors and plain data."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""


def scorer(
    loss: Loss, metrics: Mapping[str, Metric], held_out: bool = False
) -> Callable[[Any, Any], tuple[Tensor, Scores]]:
    """A function of one member's output and target: the loss, and all scores without gradient.

    Args:
        held_out: of a batch of validation: metrics of whole sets are left out, and the output is there under `OUTPUT`.
    """
    measure = metrics_alone(metrics, held_out)

    def scoring(own: Loss) -> Callable[[Any, Any], tuple[Tensor, Scores]]:
        def score(output: Any, target: Any) -> tuple[Tensor, Scores]:
            value = broadcasts.called(own, output, target, "loss", loss)
            one = isinstance(value, Tensor) and value.numel() == 1
            bare = target.y if isinstance(target, Target) else target  # without settings of the loss
            return value.reshape(()) if one else value, measure(output, bare)

        return score

    score = scoring(loss)
    own = getattr(loss, "of_module", None)
    if own is not None:
        score.of_module = lambda module: scoring(own(module))  # type: ignore[attr-defined]
    return score


def metrics_alone(metrics: Mapping[str, Metric], held_out: bool = False) -> Callable[[Any, Any], Scores]:
    """A function of one member's output and target: all metrics; see `scorer`."""

    # Their functions alone: what a step can read is watched, and metrics hold more than it reads.
    functions = {name: metric.function for name, metric in metrics.items() if not (held_out and metric.whole)}
    users = {name for name in functions if metrics[name].whole and metrics[name].accumulator is None}
    kept = held_out and len(functions) < len(metrics)

    def score(output: Any, target: Any) -> Scores:
        still, found = tensor_map(_still, output), {}
        for name, function in functions.items():
            call = measured if name in users else _called
            found[name] = call(name, function, still, target)
        return {**found, OUTPUT: still} if kept else found

    return score


def _called(name: str, function: Callable[[Any, Any], Tensor], output: Any, target: Any) -> Tensor:
    found: Tensor = broadcasts.called(function, output, target, f"metric {name}")
    return found


def _still(output: Tensor) -> Tensor:
    """An output as metrics see it: without gradient, and not in half precision."""
    return whole(output.detach())


def phases_of(objective: Objective) -> tuple[Phase, ...]:
    """The phases of a step; none where it has one loss."""
    return () if callable(objective) else tuple(objective)


def losses_of(objective: Objective) -> tuple[Loss, ...]:
    """The losses of a step."""
    return (objective,) if callable(objective) else tuple(phase.loss for phase in objective)


def called(objective: Objective, metrics: Mapping[str, Metric]) -> tuple[Any, ...]:
    """All functions of the user's that a step calls."""
    return (*losses_of(objective), *(metric.function for metric in metrics.values()))


def in_phase(x: Any, phase: Phase | None) -> Any:
    """The input, and the word that tells the module which phase this is."""
    return x if phase is None else Arguments(x, {"phase": phase.name})


def remedied(loss: Loss, rows: Sequence[Row]) -> Loss:
    """The loss of training: with the settings of the members, where the study has axes for imbalanced classes."""
    return imbalance.cross_entropy if imbalance.used(rows[0]) else loss


def call_all(module: nn.Module, x: Any, phases: Sequence[Phase]) -> None:
    """Call the module in every way in which a step does, so that lazy ones take their shapes."""
    for phase in phases or (None,):
        call_module(module, in_phase(x, phase))


def summed(losses: Mapping[str, Tensor]) -> Scores:
    """The losses of phases, and before them their sum."""
    first, *others = losses.values()
    total = first
    for loss in others:
        total = total + loss
    return {"loss": total, **losses}
