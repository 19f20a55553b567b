"""Which devices each group of a flotilla gets, so that groups cross as few nodes as possible."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hfta_nb.errors import FleetError
from hfta_nb.workers.fleet.rates import positive

MOST_PERMUTED = 7
"""Groups of which all orders are tried: 5040."""


def assign_devices(counts: Mapping[str, int], gpus_per_node: int) -> dict[str, list[int]]:
    """The devices of each group of a flotilla.

    Devices are handed out in ascending order. Groups that fill nodes come first, then pairs of groups that fill nodes
    together, side by side, then the others, the last seven of them in the order with the least sum of nodes per device.
    Where seven groups or fewer have an order with a smaller sum, they have that one.

    Args:
        counts: devices by the name of a group, each from 1.
        gpus_per_node: devices of a node, from 1.

    Returns:
        Indices of devices by name, in the order of `counts`. Device d is on node ``d // gpus_per_node``.

    Raises:
        FleetError: a count or `gpus_per_node` is not a whole number from 1.

    Example:
        >>> assign_devices({"small": 1, "large": 3}, gpus_per_node=2)
        {'small': [3], 'large': [0, 1, 2]}

    Source:
        Guan et al., "FLEET", MLSys 2020, Alg. 3, with its misprints corrected. It tries 1024 orders of the groups that
        are left over, and no order of all.
    """
    if not isinstance(counts, Mapping):
        raise FleetError("no counts", where="counts", got=counts, accepted="a mapping from a name to devices")
    for name, count in counts.items():
        positive(count, f"counts[{name!r}]")
    found = place(list(counts.values()), positive(gpus_per_node, "gpus_per_node"), range(sum(counts.values())))
    return dict(zip(counts, found, strict=True))


def place(counts: Sequence[int], per_node: int, devices: Sequence[int]) -> list[list[int]]:
    """The devices of each group, out of those that are free.

    Args:
        counts: devices of each group.
        per_node: devices of a node.
        devices: those that are free, ascending; as many as the counts together at least.
    """
    order = [i for i, count in enumerate(counts) if count % per_node == 0]
    waiting: dict[int, list[int]] = {}  # groups without a partner yet, by the remainder of their counts
    for i, count in enumerate(counts):
        if count % per_node == 0:
            continue
        partners = waiting.get(-count % per_node)
        if partners:
            order += [i, partners.pop(0)]
        else:
            waiting.setdefault(count % per_node, []).append(i)
    rest = sorted(itertools.chain.from_iterable(waiting.values()))
    order += rest[:-MOST_PERMUTED]
    begin = sum(counts[i] for i in order)
    order += _best(rest[-MOST_PERMUTED:], counts, per_node, devices[begin:])
    if len(order) <= MOST_PERMUTED:
        order = _best(order, counts, per_node, devices)
    found: list[list[int]] = [[] for _ in counts]
    begin = 0
    for i in order:
        found[i] = list(devices[begin : begin + counts[i]])
        begin += counts[i]
    return found


def _best(groups: list[int], counts: Sequence[int], per_node: int, devices: Sequence[int]) -> list[int]:
    """The order with the least sum of nodes per device; that of `groups` where no other one has less."""
    each = np.array([counts[i] for i in groups], dtype=np.int64)
    if len(set(each.tolist())) < 2:
        return groups
    orders = _permutations(len(groups))
    nodes = np.array(devices[: each.sum()]) // per_node
    rank = np.cumsum(np.diff(nodes, prepend=nodes[0]) != 0)  # devices ascend, so equal nodes are neighbours
    taken = each[orders]
    ends = np.cumsum(taken, axis=1)
    scores = ((rank[ends - 1] - rank[ends - taken] + 1) / taken).sum(axis=1)
    best = int(np.argmin(scores.round(9)))  # equal sums in another order differ in their last bits
    return [groups[place] for place in orders[best].tolist()]


@functools.cache
def _permutations(length: int) -> NDArray[np.int64]:
    """All permutations, in lexicographic order."""
    return np.array(list(itertools.permutations(range(length))), dtype=np.int64)
