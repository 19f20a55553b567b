"""Rounds of flotillas: which groups start and stop at the end of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hfta_nb.errors import FleetError
from hfta_nb.workers.fleet.flotillas import ALPHA, DELTA, greedy
from hfta_nb.workers.fleet.placement import place
from hfta_nb.workers.fleet.rates import Curves, Floats, Integers, above_zero, positive, within

Chooser = Callable[[Curves, Integers, int, Floats | None], dict[int, int]]
"""Chooses a flotilla: rates, candidates, devices, and the work that each group has left (None: unknown)."""


PARADIGMS = ("global", "local", "alone")


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
    the local paradigm (FLEET-L) released devices go to waiting groups at once, and nothing is stopped. Groups "alone"
    have one device and a stream of their own each, so their rates need not be similar: those that take longest go
    first, and released devices go to waiting groups at once.

    Args:
        rates: measured rates by the name of a group, in samples/s; ``rates[name][m - 1]`` on m devices.
        gpus: number of devices, from 1.
        gpus_per_node: devices of a node, from 1; None if all are on one.
        delta: see `create_flotilla`, in samples/s.
        alpha: share of the devices, from 0 to 1, below which a flotilla stops.
        paradigm: "global", "local" or "alone".
        most: the most devices of one group; None for any number.
        work: by name, the samples that a group trains on, for "alone"; None if all groups have equal work.

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
        most: int | None = None,
        work: Mapping[str, float] | None = None,
    ) -> None:
        if paradigm not in PARADIGMS:
            raise FleetError("no such paradigm", where="paradigm", got=paradigm, accepted=", ".join(PARADIGMS))
        within(delta, "delta", 0.0, float("inf"))
        self._most = None if most is None else positive(most, "most")
        self._rates = dict(rates) if isinstance(rates, Mapping) else rates
        self._work = _checked_work(work)
        limit = gpus if most is None else most

        def choose(curves: Curves, groups: Integers, devices: int, left: Floats | None) -> dict[int, int]:
            return {i: min(n, limit) for i, n in greedy(curves, groups, devices, delta).items()}

        self._by_index = IndexedRounds(
            self._curves(gpus),
            positive(gpus if gpus_per_node is None else gpus_per_node, "gpus_per_node"),
            within(alpha, "alpha", 0.0, 1.0),
            longest_first if paradigm == "alone" else choose,
            refill=paradigm != "global",
            most=limit,
        )

    def start(self) -> dict[str, list[int]]:
        """The first flotilla: devices by the name of a group.

        Raises:
            FleetError: the rounds have started already.
        """
        if self._by_index.running:
            raise FleetError("the rounds have started already", where="start", remedy="call finish")
        return self._named(self._by_index.start(self._left))

    def add(
        self, rates: Mapping[str, Sequence[float]], work: Mapping[str, float] | None = None
    ) -> dict[str, list[int]]:
        """Take in further groups, which wait for their turn.

        Args:
            rates, work: of the new groups, as in the constructor.

        Returns:
            Devices of the groups that start at once, by name.

        Raises:
            FleetError: a name is taken, or a rate can't be used.
        """
        for name in rates:
            if name in self._rates:
                raise FleetError("the group is there already", where="rates", got=name, accepted="another name")
        more = _checked_work(work)
        self._rates = {**self._rates, **rates}
        self._work = None if self._work is None and more is None else {**(self._work or {}), **(more or {})}
        rounds = self._by_index
        rounds.extend(self._curves(rounds.curves.gpus))
        return self._named(rounds.start(self._left) if rounds.refill or not rounds.running else {})

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
        stopped, started = self._by_index.finish([running[name] for name in given], self._left)
        return Change(tuple(self._by_index.curves.names[i] for i in stopped), self._named(started))

    def put_off(self, name: str) -> dict[str, list[int]]:
        """Take a group off its devices, as it keeps the others of its flotilla waiting; it waits for its next turn.

        Args:
            name: of a group that is running now.

        Returns:
            Devices of the groups that start, by name, perhaps itself.

        Raises:
            FleetError: the group is not running.
        """
        running = {self._by_index.curves.names[i]: i for i in self._by_index.running}
        if name not in running:
            raise FleetError("the group is not running", where="name", got=name, accepted=", ".join(map(str, running)))
        return self._named(self._by_index.put_off(running[name], self._left))

    @property
    def done(self) -> bool:
        """True once all groups have finished."""
        return not self._by_index.unfinished.any()

    @property
    def waiting(self) -> int:
        """How many unfinished groups have no devices now."""
        return int(self._by_index.unfinished.sum()) - len(self._by_index.running)

    @property
    def _left(self) -> Floats | None:
        if self._work is None:
            return None
        return np.array([self._work.get(name, 1.0) for name in self._by_index.curves.names], dtype=np.float64)

    def _curves(self, gpus: int) -> Curves:
        """The rates; constant beyond the most devices of one group."""
        curves = Curves(self._rates, gpus)
        if self._most is not None and self._most < curves.gpus:
            curves.table[:, self._most :] = curves.table[:, self._most - 1 : self._most]
        return curves

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
        most: the most devices of a group; None for any number.

    Attributes:
        running: devices of the groups that train now.
        unfinished: by group.
    """

    def __init__(
        self, curves: Curves, per_node: int, alpha: float, choose: Chooser, refill: bool, most: int | None = None
    ) -> None:
        self._most = curves.gpus if most is None else most
        self.curves, self._per_node, self._alpha, self._choose, self.refill = curves, per_node, alpha, choose, refill
        self.running: dict[int, list[int]] = {}
        self.unfinished = np.ones(len(curves), dtype=np.bool_)
        self._waiting = self.unfinished.copy()
        self._free = list(range(curves.gpus))

    def extend(self, curves: Curves) -> None:
        """Take in further groups; `curves` has those known so far first."""
        more = np.ones(len(curves) - len(self.curves), dtype=np.bool_)
        self.curves = curves
        self.unfinished = np.concatenate([self.unfinished, more])
        self._waiting = np.concatenate([self._waiting, more])

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
            if self.running and (self._in_use >= self._alpha * self.curves.gpus - 1e-9 or self._settled):
                return [], {}
            stopped = list(self.running)
            for group in stopped:
                self._free += self.running.pop(group)
                self._waiting[group] = True
        self._free.sort()
        return stopped, self.start(left)

    def put_off(self, group: int, left: Floats | None) -> dict[int, list[int]]:
        """Devices of those that start, after one was taken off its devices to wait."""
        self._free = sorted(self._free + self.running.pop(group))
        self._waiting[group] = True
        return self.start(left) if self.refill or not self.running else {}

    @property
    def _in_use(self) -> int:
        return self.curves.gpus - len(self._free)

    @property
    def _settled(self) -> bool:
        """Whether a new flotilla would be the same: nobody waits, and nobody may have more devices."""
        return not self._waiting.any() and all(len(devices) >= self._most for devices in self.running.values())


def longest_first(curves: Curves, groups: Integers, devices: int, left: Floats | None) -> dict[int, int]:
    """One device for each of the groups that take longest; ties in the order of the groups."""
    seconds = (1.0 if left is None else left) / curves.table[:, 0]
    order = groups[np.argsort(-seconds[groups], kind="stable")]
    return dict.fromkeys(order[:devices].tolist(), 1)


def _checked_work(work: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if work is None else {name: above_zero(value, f"work[{name!r}]") for name, value in work.items()}
