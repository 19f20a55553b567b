"""The plan of a whole run: flotillas in time, by whichever method ends first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hfta_nb.errors import FleetError
from hfta_nb.workers.fleet.flotillas import ALPHA, DELTA, greedy
from hfta_nb.workers.fleet.partition import MOST_EXACT, MOST_SEARCHED, Partition, exact, improved
from hfta_nb.workers.fleet.plan_records import Plan
from hfta_nb.workers.fleet.rates import Curves, Floats, Integers, above_zero, positive, within
from hfta_nb.workers.fleet.rounds import Chooser, IndexedRounds
from hfta_nb.workers.fleet.virtual import replay

Epochs = float | Mapping[str, float] | Callable[[str, int], bool]

METHODS = ("global", "local", "improved", "exact")
_MOST_EPOCHS = 100_000
_WIDER = (0.25, 4.0, float("inf"))
"""Multiples of `delta` that "improved" tries as well."""

_MOST_RETRIED = 1_000_000
"""Groups times devices up to which it does."""


def plan(
    rates: Mapping[str, Sequence[float]],
    gpus: int,
    epochs: Epochs,
    *,
    samples_per_epoch: float = 1.0,
    gpus_per_node: int | None = None,
    delta: float = DELTA,
    alpha: float = ALPHA,
    method: str = "best",
    checkpoint_s: float = 0.0,
) -> Plan:
    """Plan a whole run: which groups train when, and on which devices.

    All groups of a flotilla consume one stream of batches, so each trains at the rate of the slowest that is active.

    Args:
        rates: measured rates by the name of a group, in samples/s; ``rates[name][m - 1]`` on m devices. Beyond those
            measured they are those of `extrapolate`.
        gpus: number of devices, from 1.
        epochs: how long each group trains: a number for all (fractions are allowed, so it may be work of any kind), a
            mapping from the name, or a callback ``converged(name, epoch) -> bool`` that is asked at the end of each
            epoch, from 1. With a callback flotillas are chosen as if all groups had equal work left.
        samples_per_epoch: samples in an epoch, more than 0.
        gpus_per_node: devices of a node, from 1; None if all are on one.
        delta: see `create_flotilla`, in samples/s.
        alpha: share of the devices, from 0 to 1, below which a flotilla stops and a new one is made.
        method: "global" (FLEET-G), "local" (FLEET-L), "improved" (a search over partitions into flotillas), "exact"
            (the best partition, for at most 10 groups), or "best": whichever of them takes the least time.
        checkpoint_s: time that it takes to stop one flotilla and start the next, in seconds.

    Returns:
        The plan; ``plan.method`` names the method that made it.

    Raises:
        FleetError: an argument is out of its range, a group has no epochs, or one does not converge.

    Example:
        >>> rates = {"a": [100, 190, 270, 350], "b": [80, 150, 220, 280], "c": [40, 75, 105, 120]}
        >>> round(plan(rates, 4, epochs=10, samples_per_epoch=6000, method="global").makespan_s)
        814
    """
    run = run_of(rates, gpus, epochs, samples_per_epoch, gpus_per_node, delta, alpha, checkpoint_s)
    if method not in (*METHODS, "best"):
        raise FleetError("no such method", where="method", got=method, accepted=", ".join((*METHODS, "best")))
    if method == "exact" and len(run.curves) > MOST_EXACT:
        raise FleetError("too many groups to search all partitions", where="method", got=len(run.curves),
                         accepted=f"at most {MOST_EXACT} groups", remedy="use method='best'")  # fmt: skip
    tried = (method,) if method != "best" else methods_for(run.curves)
    return min((run.plan(name) for name in tried), key=lambda plan: plan.makespan_s)


def methods_for(curves: Curves) -> tuple[str, ...]:
    """The methods that so many groups allow."""
    return METHODS if len(curves) <= MOST_EXACT else METHODS[:-1]


@dataclass(frozen=True)
class Run:
    """A run to be planned: arguments of `plan` that have been checked.

    Attributes:
        curves: rates.
        left: samples that each group trains on.
        known: True if a method may see how much each group has left.
        per_node: devices of a node.
        delta, alpha, checkpoint_s: as `plan` has them.
    """

    curves: Curves
    left: Floats
    known: bool
    per_node: int
    delta: float
    alpha: float
    checkpoint_s: float

    def plan(self, method: str) -> Plan:
        """The plan of one method."""
        choosers = self._choosers(method)
        return min((self.replay(method, choose) for choose in choosers), key=lambda plan: plan.makespan_s)

    def replay(self, method: str, choose: Chooser, alpha: float | None = None) -> Plan:
        """The plan with flotillas from a chooser; `alpha` replaces that of the run."""
        alpha = self.alpha if alpha is None else alpha
        rounds = IndexedRounds(self.curves, self.per_node, alpha, choose, refill=method == "local")
        return replay(rounds, self.left, self.known, self.checkpoint_s, method)

    def _choosers(self, method: str) -> list[Chooser]:
        if method == "exact":
            return [_Queue(exact, self.delta)]
        if method == "improved":
            few = self.curves.table.size <= _MOST_RETRIED and self.delta > 0
            return [_Queue(improved, self.delta), *(_greedy(self.delta * times) for times in _WIDER if few)]
        return [_greedy(self.delta)]


def run_of(
    rates: Mapping[str, Sequence[float]],
    gpus: int,
    epochs: Epochs,
    samples_per_epoch: float,
    gpus_per_node: int | None,
    delta: float,
    alpha: float,
    checkpoint_s: float,
) -> Run:
    """The run of these arguments of `plan`, checked."""
    curves = Curves(rates, gpus)
    per_node = positive(gpus if gpus_per_node is None else gpus_per_node, "gpus_per_node")
    within(delta, "delta", 0.0, float("inf"))
    within(alpha, "alpha", 0.0, 1.0)
    within(checkpoint_s, "checkpoint_s", 0.0, float("inf"))
    left = work(curves, epochs, samples_per_epoch)
    return Run(curves, left, not callable(epochs), per_node, delta, alpha, checkpoint_s)


def _greedy(delta: float) -> Chooser:
    return lambda curves, groups, gpus, left: greedy(curves, groups, gpus, delta)


class _Queue:
    """Chooses the flotillas of a partition one after another, and makes a new one once groups are left over.

    Args:
        search: makes a partition.
        delta: samples/s.
    """

    def __init__(self, search: Callable[[Curves, Integers, Floats | None, float], Partition], delta: float) -> None:
        self._search, self._delta = search, delta
        self._queue: Partition = []

    def __call__(self, curves: Curves, groups: Integers, gpus: int, left: Floats | None) -> dict[int, int]:
        if len(groups) > MOST_SEARCHED:
            return greedy(curves, groups, gpus, self._delta)
        if sorted(i for counts in self._queue for i in counts) != groups.tolist():
            self._queue = self._search(curves, groups, left, self._delta)
        return self._queue.pop(0)


def work(curves: Curves, epochs: Epochs, samples_per_epoch: float) -> Floats:
    """Samples that each group trains on.

    Raises:
        FleetError: a group has no epochs or does not converge, or a number is not positive.
    """
    samples_per_epoch = above_zero(samples_per_epoch, "samples_per_epoch")
    if callable(epochs):
        return samples_per_epoch * np.array([_until(epochs, name) for name in curves.names], dtype=np.float64)
    found: list[Any] = [epochs] * len(curves)
    if isinstance(epochs, Mapping):
        set_of_names = set(curves.names)
        lacking = [name for name in curves.names if name not in epochs]
        unknown = [name for name in epochs if name not in set_of_names]
        for names, what in ((lacking, "the group has no epochs"), (unknown, "epochs of an unknown group")):
            if names:
                raise FleetError(what, where="epochs", got=names[0], accepted="one number for each group of rates")
        found = [epochs[name] for name in curves.names]
    numbers = [above_zero(value, f"epochs of {name!r}") for name, value in zip(curves.names, found, strict=True)]
    return samples_per_epoch * np.array(numbers)


def _until(converged: Callable[[str, int], bool], name: str) -> int:
    for epoch in range(1, _MOST_EPOCHS + 1):
        if converged(name, epoch):
            return epoch
    raise FleetError("the group does not converge", where="epochs", got=name, accepted=f"{_MOST_EPOCHS} epochs or less",
                     remedy="let the callback end every group, converged or not")  # fmt: skip
