"""What a training run needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hfta_nb.data import AnyData
from hfta_nb.models.recipes import Family
from hfta_nb.train.step import Precision


@dataclass(frozen=True)
class Settings:
    """What a training run needs to know, apart from its groups.

    Attributes:
        data: on the CPU, as loaded.
        epochs: passes through the training data, or times `steps_per_epoch` steps.
        patience: validations without improvement after which a member stops; None for never.
        monitor: the metric that decides which epoch is best, for example "val_loss".
        maximize: whether more of it is better.
        seed: of the order of the data, where a variant has none of its own.
        measure: whether to time the plain module beside the first steps.
        validate_every: epochs from one validation to the next; the last epoch always has one.
        steps_per_epoch: optimizer steps of an epoch; None for as many as go through the training data.
        precision: in which the members compute.
        capacity: the most members of an array; None for as many as fit, "auto" for as many as are fastest.
        checkpointing: "auto", "never" or "always", of activations.
        compiling: "auto", "never" or "always", of replayed steps.
        strategy: how kernels are chosen; see `FusedArray.strategy`.
        deterministic: nothing is chosen by time; see `hfta_nb.Study`.
        verify: when calls are compared with the plain module; see `FusedArray.verify`.
        slots: the most members that train at the same time in a search, whose free places others take; None where
            arrays are not refilled.
        refilled: whether there are more trials than slots.
        padding: the largest share of padding of an array; see `plan.make_plan`.
        member_steps, member_seconds: optimizer steps and seconds of training after which a member ends, at the end of
            its epoch; None for no such limit.
        share_stream: whether arrays that read the same stream take turns; see `hfta_nb.Study`.
        validation_batch_size: samples of validation that go through at once; None for as many as in training, or for
            mini-batches of the data's own.
        population: replaces members by others while they train; None for nothing.
        pulling: how members are pulled toward the best of their array while they train; None for not at all.
        keep_last: whether the weights are kept with which a member ends, pauses, or was last validated.
        rungs: epochs of a member after which its weights are kept.
        min_delta: an improvement by no more than this does not count for patience.
        cache_features: "auto" or "never"; see `features`.
    """

    family: Family
    data: AnyData
    epochs: int
    patience: int | None
    monitor: str
    maximize: bool
    device: torch.device
    dtype: torch.dtype
    seed: int = 0
    measure: bool = True
    validate_every: int = 1
    steps_per_epoch: int | None = None
    precision: Precision = field(default_factory=Precision)
    capacity: int | str | None = None
    checkpointing: str = "auto"
    compiling: str = "auto"
    strategy: str = "measured"
    deterministic: bool = False
    verify: str = "first"
    slots: int | None = None
    refilled: bool = False
    padding: float | str = "never"
    member_steps: int | None = None
    member_seconds: float | None = None
    share_stream: bool = True
    validation_batch_size: int | None = None
    population: Population | None = None
    pulling: Pulling | None = None
    keep_last: bool = False
    rungs: frozenset[int] = frozenset()
    min_delta: float = 0.0
    cache_features: str = "auto"

    @property
    def score_dtype(self) -> torch.dtype:
        """Of losses and metrics: those of bfloat16 models are float32."""
        return torch.float32 if self.dtype == torch.bfloat16 else self.dtype

    @property
    def repeats(self) -> bool:
        """Whether kernels must give the same bits in each run; those of a CPU do."""
        return self.deterministic and self.device.type == "cuda"

    def validates(self, epoch: int) -> bool:
        """Whether there is a validation after this epoch, from 1."""
        return epoch % self.validate_every == 0 or epoch == self.epochs


Replacement = tuple[int, int, dict[str, Any]]
"""A member of a population to be replaced, the one that it becomes a copy of, and the values that it then changes."""


@dataclass(frozen=True)
class Pulling:
    """How members are pulled toward the best of their array; see `hfta_nb.Leader`.

    Attributes:
        pull: toward the leader of a member's group.
        global_pull: toward the leader of all; 0 where there is one group.
        every: steps from one pull to the next.
        groups: how many.
        metric: by which members lead, of training or validation; None where a center takes the leader's place.
        maximize: whether more of it is better.
    """

    pull: float
    global_pull: float
    every: int
    groups: int
    metric: str | None
    maximize: bool = False


class Population(Protocol):
    """Replaces members by others while they train."""

    def decide(
        self, epoch: int, values: Mapping[int, float], rows: Mapping[int, Mapping[str, Any]], maximize: bool
    ) -> list[Replacement]:
        """After an epoch with a validation, which members become copies of which.

        Args:
            epoch: that has ended, from 1.
            values: by variant, the monitored metric.
            rows: by variant, the values of its training axes.
            maximize: whether more of the metric is better.
        """
