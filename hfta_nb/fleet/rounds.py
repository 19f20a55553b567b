"""Rounds of flotillas: which groups start and stop at the end of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hfta_nb.errors import FleetError
from hfta_nb.fleet.flotillas import ALPHA, DELTA, greedy
from hfta_nb.fleet.placement import place
from hfta_nb.fleet.rates import Curves, Floats, Integers, positive, within

Chooser = Callable[[Curves, Integers, int, Floats | None], dict[int, int]]
"""Chooses a flotilla: rates, candidates, devices, and the work that each group has left (None: unknown)."""


@dataclass(frozen=True)
class Change:
    """What to do at the end of an epoch.

    Attributes:
        stopped: groups to checkpoint and take off their devices; they have not finished.
        started: devices of the groups to start, each from its newest checkpoint, by name.
    """

    stopped: tuple[str, ...] = ()
    started: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Rounds:
    """The rounds of a run, told which groups have finished.

    Call `start`, train the groups that it names, and call `finish` at the end of each epoch in which a group finished
    (converged, or out of epochs). In the global paradigm (FLEET-G) a group that finishes releases its devices; once
    less than `alpha` of the devices are in use the flotilla stops, and a new one is made of all unfinished groups. In
    the local paradigm (FLEET-L) released devices go to waiting groups at once, and nothing is stopped.

    Args:
        rates: measured rates by the name of a group, in samples/s; ``rates[name][m - 1]`` on m devices.
        gpus: number of devices, from 1.
        gpus_per_node: devices of a node, from 1; None if all are on one.
        delta: see `create_flotilla`, in samples/s.
        alpha: share of the devices, from 0 to 1, below which a flotilla stops.
        paradigm: "global" or "local".

    Raises:
        FleetError: an argument is out of its range.

    Example:
        >>> rounds = Rounds({"a": [100, 190], "b": [80, 150], "c": [40, 75]}, gpus=2, gpus_per_node=1)
        >>> rounds.start()
        {'a': [0], 'b': [1]}
        >>> rounds.finish(["a"])
        Change(stopped=('b',), started={'b': [0, 1]})

    Source:
        Guan et al., "FLEET", MLSys 2020, Alg. 1 and the local variant.
    """

    def __init__(
        self,
        rates: Mapping[str, Sequence[float]],
        gpus: int,
        *,
        gpus_per_node: int | None = None,
        delta: float = DELTA,
        alpha: float = ALPHA,
        paradigm: str = "global",
    ) -> None:
        if paradigm not in ("global", "local"):
            raise FleetError("no such paradigm", where="paradigm", got=paradigm, accepted="'global' or 'local'")
        within(delta, "delta", 0.0, float("inf"))

        def choose(curves: Curves, groups: Integers, devices: int, left: Floats | None) -> dict[int, int]:
            return greedy(curves, groups, devices, delta)

        self._by_index = IndexedRounds(
            Curves(rates, gpus),
            positive(gpus if gpus_per_node is None else gpus_per_node, "gpus_per_node"),
            within(alpha, "alpha", 0.0, 1.0),
            choose,
            refill=paradigm == "local",
        )

    def start(self) -> dict[str, list[int]]:
        """The first flotilla: devices by the name of a group.

        Raises:
            FleetError: the rounds have started already.
        """
        if self._by_index.running:
            raise FleetError("the rounds have started already", where="start", remedy="call finish")
        return self._named(self._by_index.start(None))

    def finish(self, names: Iterable[str]) -> Change:
        """Tell which groups finished at the end of an epoch, and get what changes.

        Args:
            names: groups that are running now.

        Raises:
            FleetError: a group is not running, or is named twice.
        """
        given = list(names)
        running = {self._by_index.curves.names[i]: i for i in self._by_index.running}
        for place_, name in enumerate(given):
            if name not in running or name in given[:place_]:
                what = "named twice" if name in running else "the group is not running"
                raise FleetError(what, where="names", got=name, accepted=", ".join(map(str, running)))
        stopped, started = self._by_index.finish([running[name] for name in given], None)
        return Change(tuple(self._by_index.curves.names[i] for i in stopped), self._named(started))

    @property
    def done(self) -> bool:
        """True once all groups have finished."""
        return not self._by_index.unfinished.any()

    def _named(self, devices: Mapping[int, list[int]]) -> dict[str, list[int]]:
        return {self._by_index.curves.names[i]: found for i, found in devices.items()}


class IndexedRounds:
    """`Rounds` by index, with any chooser of flotillas.

    Args:
        curves: rates.
        per_node: devices of a node.
        alpha: share of the devices below which a flotilla stops.
        choose: makes a flotilla.
        refill: True for the local paradigm.

    Attributes:
        running: devices of the groups that train now.
        unfinished: by group.
    """

    def __init__(self, curves: Curves, per_node: int, alpha: float, choose: Chooser, refill: bool) -> None:
        self.curves, self._per_node, self._alpha, self._choose, self.refill = curves, per_node, alpha, choose, refill
        self.running: dict[int, list[int]] = {}
        self.unfinished = np.ones(len(curves), dtype=np.bool_)
        self._waiting = self.unfinished.copy()
        self._free = list(range(curves.gpus))

    def start(self, left: Floats | None) -> dict[int, list[int]]:
        """Fill the free devices.

        Args:
            left: work that each group has left; None where that is not known.
        """
        candidates = np.flatnonzero(self._waiting)
        if not len(candidates) or not self._free:
            return {}
        counts = self._choose(self.curves, candidates, len(self._free), left)
        groups = sorted(counts)
        found = dict(zip(groups, place([counts[i] for i in groups], self._per_node, self._free), strict=True))
        taken = {device for devices in found.values() for device in devices}
        self._free = [device for device in self._free if device not in taken]
        self._waiting[groups] = False
        self.running |= found
        return found

    def finish(self, groups: Sequence[int], left: Floats | None) -> tuple[list[int], dict[int, list[int]]]:
        """Groups that stop, and devices of those that start, after some have finished."""
        if not groups:
            return [], {}
        for group in groups:
            self._free += self.running.pop(group)
            self.unfinished[group] = False
        stopped: list[int] = []
        if not self.refill:
            if self.running and self.curves.gpus - len(self._free) >= self._alpha * self.curves.gpus - 1e-9:
                return [], {}
            stopped = list(self.running)
            for group in stopped:
                self._free += self.running.pop(group)
                self._waiting[group] = True
        self._free.sort()
        return stopped, self.start(left)
