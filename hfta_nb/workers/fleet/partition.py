"""Partitions of groups into flotillas: the best one of few groups, and a good one of more.

The time of a partition is the sum over its flotillas of the most work of a member over the rate of the slowest. It is
exact where all members of a flotilla have equal work.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from hfta_nb.workers.fleet.flotillas import fill, greedy
from hfta_nb.workers.fleet.rates import Curves, Floats, Integers

Partition = list[dict[int, int]]
"""Flotillas, each with its devices by group."""

Sets = list[tuple[int, ...]]

MOST_EXACT = 10
"""Groups of which all partitions are searched, at most: the search grows as 3 to their number."""

MOST_SEARCHED = 64
"""Groups whose partition is improved by local search, at most."""

_MOST_TIMED = 10_000
_WIDER = (0.25, 1.0, 4.0, math.inf)
_LESS = 1 - 1e-12
"""A change counts as better if the time falls below this share: sums in another order differ in their last bits."""


class Times:
    """The time that sets of groups take as a flotilla.

    Args:
        curves: rates.
        groups: indices of candidates.
        left: work of every group of `curves`; None for equal work.
    """

    def __init__(self, curves: Curves, groups: Integers, left: Floats | None) -> None:
        self.gpus = curves.gpus
        work = np.ones(len(groups)) if left is None else left[groups]
        self._work = dict(zip(groups.tolist(), work.tolist(), strict=True))
        table = curves.table[groups]
        self._levels = np.unique(table)
        columns = [row.searchsorted(self._levels) + 1 for row in table]
        # Devices needed by each group (columns) to reach each level (rows); more than there are where none suffice.
        self._needed = np.minimum(np.stack(columns, axis=1), curves.gpus + 1)
        self._column = {group: place for place, group in enumerate(groups.tolist())}
        self._known: dict[tuple[int, ...], float] = {(): 0.0}

    @property
    def timed(self) -> int:
        """How many sets have been looked at."""
        return len(self._known)

    def __call__(self, members: tuple[int, ...]) -> float:
        """Time of a flotilla of these groups, ascending; infinite if they are more than the devices."""
        found = self._known.get(members)
        if found is None:
            found = self._known[members] = self._time(members)
        return found

    def _time(self, members: tuple[int, ...]) -> float:
        if len(members) > self.gpus:
            return math.inf
        columns = [self._column[i] for i in members]
        reached = bisect.bisect_right(
            range(len(self._levels)), self.gpus, key=lambda level: int(self._needed[level, columns].sum())
        )
        return float(max(self._work[i] for i in members) / self._levels[reached - 1])

    def total(self, sets: Iterable[tuple[int, ...]]) -> float:
        """Time of flotillas one after another."""
        return sum((self(one) for one in sets), start=0.0)


def exact(curves: Curves, groups: Integers, left: Floats | None, delta: float) -> Partition:
    """The partition that takes the least time, by dynamic programming over subsets.

    Args:
        curves: rates.
        groups: indices of candidates, at most `MOST_EXACT`.
        left: work of every group; None for equal work.
        delta: not used: the best partition needs no tolerance.
    """
    times = Times(curves, groups, left)
    members = groups.tolist()
    whole = (1 << len(members)) - 1
    named = [tuple(g for bit, g in enumerate(members) if mask >> bit & 1) for mask in range(whole + 1)]
    cost = [times(found) for found in named]
    best, first = [0.0] + [math.inf] * whole, [0] * (whole + 1)
    for mask in range(1, whole + 1):
        lowest = mask & -mask
        others = part = mask ^ lowest
        while True:
            time = cost[part | lowest] + best[others ^ part]
            if time < best[mask]:
                best[mask], first[mask] = time, part | lowest
            if not part:
                break
            part = (part - 1) & others
    found, mask = [], whole
    while mask:
        found.append(named[first[mask]])
        mask ^= first[mask]
    return _flotillas(curves, found)


def improved(curves: Curves, groups: Integers, left: Floats | None, delta: float) -> Partition:
    """A partition that takes no more time than the greedy one, by local search from several beginnings.

    They are greedy partitions with several tolerances and the best partition into runs of groups sorted by rate. Groups
    are moved and exchanged between flotillas, and flotillas are joined, while that takes less time.

    Args:
        curves: rates.
        groups: indices of candidates.
        left: work of every group; None for equal work.
        delta: of the greedy partition, in samples/s.
    """
    times = Times(curves, groups, left)
    beginnings = [sets_of(chain(curves, groups, delta * wider)) for wider in _WIDER if delta or wider == 1]
    beginnings.append(_runs(curves, groups, times))
    distinct = {tuple(sorted(sets)): sets for sets in sorted(beginnings, key=times.total)}
    return _flotillas(curves, min((_searched(sets, times) for sets in distinct.values()), key=times.total))


def chain(curves: Curves, groups: Integers, delta: float) -> Partition:
    """Flotillas as FLEET-G makes them where all members of each finish at once."""
    found = []
    while len(groups):
        found.append(greedy(curves, groups, curves.gpus, delta))
        groups = groups[~np.isin(groups, list(found[-1]))]
    return found


def sets_of(partition: Partition) -> Sets:
    """The members of each flotilla, ascending."""
    return [tuple(sorted(counts)) for counts in partition]


def _flotillas(curves: Curves, sets: Sets) -> Partition:
    """Devices for each set such that its slowest group is as fast as can be; fast flotillas first."""
    found = []
    for members in sets:
        counts = dict.fromkeys(members, 1)
        fill(counts, curves, curves.gpus)
        found.append((min(float(curves.table[i, count - 1]) for i, count in counts.items()), counts))
    return [counts for _, counts in sorted(found, key=lambda one: -one[0])]


def _runs(curves: Curves, groups: Integers, times: Times) -> Sets:
    """The best partition into runs of groups that are sorted by their rate on one device."""
    order = groups[np.argsort(-curves.table[groups, 0], kind="stable")].tolist()
    best, first = [0.0], [0]
    for end in range(1, len(order) + 1):
        begins = range(max(0, end - curves.gpus), end)
        costs = [best[begin] + times(tuple(sorted(order[begin:end]))) for begin in begins]
        best.append(min(costs))
        first.append(begins[costs.index(best[-1])])
    found, end = [], len(order)
    while end:
        found.append(tuple(sorted(order[first[end] : end])))
        end = first[end]
    return found


def _searched(sets: Sets, times: Times) -> Sets:
    """The sets after all changes that take less time, or after `_MOST_TIMED` sets have been looked at."""
    sets = [*sets, ()]
    better = True
    while better and times.timed < _MOST_TIMED:
        better = False
        for a, b in itertools.combinations(range(len(sets)), 2):
            before = times(sets[a]) + times(sets[b])
            after = min(_changes(sets[a], sets[b]), key=lambda pair: times(pair[0]) + times(pair[1]), default=None)
            if after is not None and times(after[0]) + times(after[1]) < before * _LESS:
                sets[a], sets[b] = after
                better = True
                if () not in sets:
                    sets.append(())
            if times.timed >= _MOST_TIMED:
                break
    return [members for members in sets if members]


def _changes(a: tuple[int, ...], b: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Two flotillas with a group moved, with two exchanged, or joined."""
    for source, target in ((a, b), (b, a)):
        for i in source:
            rest, more = tuple(g for g in source if g != i), tuple(sorted((*target, i)))
            yield (rest, more) if source is a else (more, rest)
    for i, j in itertools.product(a, b):
        yield tuple(sorted((*(g for g in a if g != i), j))), tuple(sorted((*(g for g in b if g != j), i)))
    if a and b:
        yield tuple(sorted((*a, *b))), ()
