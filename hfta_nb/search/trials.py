"""A trial as the search sees it: its members, their values, and what they come to together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hfta_nb.records.events import Json
from hfta_nb.search.methods import REDUCTION

if TYPE_CHECKING:
    import optuna

COSTS = ("parameters", "time_s", "memory_bytes")
"""Objectives that are no metrics, each of a member: fewer is better."""


@dataclass
class Trial:
    """A configuration that is tried, by one member or by one for each seed.

    Attributes:
        number: Optuna's.
        config: values by axis, without the seeds.
        handle: Optuna's handle of it; None of one that has ended in an earlier run of the study.
        variants: the members that train it; empty before they are planned.
        live: those of them that have not ended.
        epochs: values of the monitored metric by epoch, by variant.
        best: the best of them, by variant.
        others: values of the other objectives that are metrics at that epoch, by variant.
        states: how each member that has ended did.
        pruned_at, pruned_because: the epoch after which it was pruned in an earlier run of the study, 0 where it was
            not, and why.
        verdicts: epochs after which the pruner gave it up.
    """

    number: int
    config: dict[str, Json]
    handle: optuna.trial.Trial | None
    variants: list[int] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    epochs: dict[int, dict[int, float]] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)
    others: dict[int, dict[str, float]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    pruned_at: int = 0
    pruned_because: str = ""
    verdicts: set[int] = field(default_factory=set)

    @property
    def optuna_trial(self) -> optuna.trial.Trial:
        """Optuna's handle of a trial that has not ended."""
        assert self.handle is not None  # it has one until it is told of
        return self.handle

    @property
    def ended(self) -> bool:
        return bool(self.states) and not self.live


def aggregate(values: Sequence[float], maximize: bool, how: str) -> float:
    """What the values of a trial's seeds come to.

    Args:
        values: finite, at least one.
        maximize: whether more is better.
        how: "mean" or "bound". "bound" is the bound of the mean on its worse side, one standard error away: the lower
            confidence bound where more is better. Of one value it is that value.
    """
    mean = sum(values) / len(values)
    if how == "mean" or len(values) < 2:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean - error if maximize else mean + error


def in_turn(values: list[tuple[float, Trial]], maximize: bool) -> list[tuple[float, Trial]]:
    """The order in which a pruner judges trials that were trained side by side.

    Successive halving compares a trial with those that were judged before it, and promotes the first of all. So the
    best third goes first, the worst of them first: each is promoted; then the others, the best of them first.
    """
    ranked = sorted(values, key=lambda pair: pair[0], reverse=maximize)
    promoted = -(-len(ranked) // REDUCTION)
    return [*reversed(ranked[:promoted]), *ranked[promoted:]]


def violated(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial has a constraint above zero, set by a sampler or by `optuna.trial.Trial.set_constraint`."""
    found = trial.system_attrs
    own = [value for name, value in found.items() if name.startswith("constraints:")]
    return any(value > 0 for value in (*(found.get("constraints") or ()), *own))
