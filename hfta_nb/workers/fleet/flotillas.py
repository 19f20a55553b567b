"""FLEET's greedy choice of the groups that train at the same time, and of their devices."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hfta_nb.workers.fleet.rates import Curves, Floats, Integers, within

DELTA = 20.0
ALPHA = 0.8


def create_flotilla(
    rates: Mapping[str, Sequence[float]], gpus: int, delta: float = DELTA, alpha: float = ALPHA
) -> dict[str, int]:
    """The groups of the next flotilla, and how many devices each gets.

    The fastest group gets one device, and its rate is the reference. Groups that come within `delta` of it on some
    number of the devices left follow, closest first; then the slowest gets one device more until all are in use.

    Args:
        rates: measured rates by the name of a group, in samples/s; ``rates[name][m - 1]`` on m devices. Beyond those
            measured they are those of `extrapolate`.
        gpus: number of devices, from 1.
        delta: the largest difference from the reference in samples/s, 0 or more; inclusive.
        alpha: share of the devices, from 0 to 1, below which a running flotilla ends. It decides when a flotilla ends
            and not who is in it, so it doesn't change the result; it is checked here as `plan` does.

    Returns:
        Devices by name, in the order in which the groups were chosen; their sum is `gpus`.

    Raises:
        FleetError: there are no groups, or an argument is out of its range.

    Example:
        >>> rates = {"small": [100, 190, 270, 350], "medium": [80, 150, 220, 280], "large": [40, 75, 105, 120]}
        >>> create_flotilla(rates, 4)
        {'small': 1, 'large': 3}

    Source:
        Guan et al., "FLEET", MLSys 2020. Ties go to the group that is first in `rates`, then to fewer devices.
    """
    curves = Curves(rates, gpus)
    within(alpha, "alpha", 0.0, 1.0)
    counts = greedy(curves, np.arange(len(curves)), curves.gpus, within(delta, "delta", 0.0, float("inf")))
    return {curves.names[i]: count for i, count in counts.items()}


def greedy(curves: Curves, groups: Integers, gpus: int, delta: float) -> dict[int, int]:
    """`create_flotilla` by index.

    Args:
        curves: rates.
        groups: indices of candidates, ascending.
        gpus: devices to give away, from 1.
        delta: samples/s.
    """
    fast = int(groups[np.argmax(curves.table[groups, 0])])
    chosen = {fast: 1}
    if gpus > 1:
        _join(chosen, curves, groups[groups != fast], gpus, float(curves.table[fast, 0]), delta)
        fill(chosen, curves, gpus)
    return chosen


def _join(chosen: dict[int, int], curves: Curves, groups: Integers, gpus: int, reference: float, delta: float) -> None:
    """Add groups by their distance from the reference, while devices are left."""
    left = gpus - sum(chosen.values())
    errors, counts = curves.nearest(groups, reference, left)
    close = errors <= delta
    first = _ascending(errors[close], groups[close], counts[close], left)
    again: list[tuple[float, int, int]] = []
    following = next(first, None)
    while left and (following or again):
        if again and (following is None or again[0] < following):
            _, group, count = heapq.heappop(again)
        elif following:
            (_, group, count), following = following, next(first, None)
        if count > left:
            # All rates on fewer devices are below the reference, so the one on all devices left is the closest.
            row = curves.table[group, :left]
            error = reference - float(row[-1])
            if error <= delta:
                heapq.heappush(again, (error, group, int(row.searchsorted(row[-1])) + 1))
            continue
        chosen[group] = count
        left -= count


def _ascending(errors: Floats, groups: Integers, counts: Integers, left: int) -> Iterator[tuple[float, int, int]]:
    """Error, group and devices, closest first; ties in the order of the groups."""
    head = 2 * left + 32
    bound = np.partition(errors, head)[head] if len(errors) > head else math.inf  # few are looked at: don't sort all
    for part in (errors <= bound, errors > bound):
        order = np.flatnonzero(part)
        order = order[np.argsort(errors[order], kind="stable")]
        yield from zip(errors[order].tolist(), groups[order].tolist(), counts[order].tolist(), strict=True)


def fill(chosen: dict[int, int], curves: Curves, gpus: int) -> None:
    """Give devices that are left to the slowest group, one at a time."""
    order = {group: place for place, group in enumerate(sorted(chosen))}
    queue = [(float(curves.table[group, count - 1]), order[group], group) for group, count in chosen.items()]
    heapq.heapify(queue)
    for _ in range(gpus - sum(chosen.values())):
        _, place, group = queue[0]
        chosen[group] += 1
        heapq.heapreplace(queue, (float(curves.table[group, chosen[group] - 1]), place, group))
