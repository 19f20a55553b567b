"""For all rates: FLEET's rules hold, and no method is worse than the greedy one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfta_nb import fleet
from hfta_nb.workers.fleet.partition import Times, chain, exact, improved, sets_of
from hfta_nb.workers.fleet.rates import Curves

Rates = dict[str, list[float]]

explored = settings(max_examples=60, deadline=None, derandomize=True, database=None)
_rate = st.integers(1, 60).map(float) | st.floats(0.5, 200)  # whole ones are often equal
_rates = st.dictionaries(st.sampled_from("abcdefghijkl"), st.lists(_rate, min_size=1, max_size=6), min_size=1)
_few = st.dictionaries(st.sampled_from("abcdef"), st.lists(_rate, min_size=1, max_size=6), min_size=1)
_gpus = st.integers(1, 9)
_delta = st.sampled_from([0.0, 2.0, 20.0, float("inf")])
_epochs = st.integers(1, 4)


def written_out(rates: Rates, gpus: int, delta: float) -> dict[str, int]:
    """The algorithm as it is written, over all groups and counts."""
    table = {name: fleet.extrapolate(found, gpus) for name, found in rates.items()}
    order = {name: place for place, name in enumerate(rates)}
    fast = max(rates, key=lambda name: (table[name][0], -order[name]))
    reference, counts = table[fast][0], {fast: 1}
    while True:
        left = gpus - sum(counts.values())
        options = [
            (abs(table[name][k - 1] - reference), order[name], k, name)
            for name in rates
            for k in range(1, left + 1)
            if name not in counts and abs(table[name][k - 1] - reference) <= delta
        ]
        if not options:
            break
        _, _, k, name = min(options)
        counts[name] = k
    while sum(counts.values()) < gpus:
        slowest = min(counts, key=lambda name: (table[name][counts[name] - 1], order[name]))
        counts[slowest] += 1
    return counts


@explored
@given(_rates, _gpus, _delta)
def test_a_flotilla_is_that_of_the_algorithm_written_out(rates: Rates, gpus: int, delta: float) -> None:
    found = fleet.create_flotilla(rates, gpus, delta)
    assert found == written_out(rates, gpus, delta)
    assert sum(found.values()) == gpus


@explored
@given(st.lists(_rate, min_size=1, max_size=6), st.integers(1, 40))
def test_extrapolated_rates_never_fall_and_begin_with_the_measured_maximum(rates: list[float], n: int) -> None:
    found = fleet.extrapolate(rates, n)
    assert len(found) == n
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert found[: len(rates)] == list(itertools.accumulate(rates, max))[:n]


@explored
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 8))
def test_devices_are_handed_out_once(counts: list[int], per_node: int) -> None:
    found = fleet.assign_devices({str(i): count for i, count in enumerate(counts)}, per_node)
    assert [len(devices) for devices in found.values()] == counts
    assert sorted(device for devices in found.values() for device in devices) == list(range(sum(counts)))
    for devices in found.values():
        assert devices == list(range(devices[0], devices[-1] + 1))


@settings(explored, max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 8))
def test_no_order_of_the_groups_crosses_fewer_nodes(counts: list[int], per_node: int) -> None:
    def cost(begin: int, count: int) -> float:
        return ((begin + count - 1) // per_node - begin // per_node + 1) / count

    def in_order(order: Sequence[int]) -> float:
        begins = [0, *itertools.accumulate(order)]
        return sum(cost(begin, count) for begin, count in zip(begins, order, strict=False))

    found = fleet.assign_devices({str(i): count for i, count in enumerate(counts)}, per_node)
    cost_found = sum(cost(devices[0], len(devices)) for devices in found.values())
    assert cost_found <= min(map(in_order, itertools.permutations(counts))) + 1e-9


@settings(explored, max_examples=25)
@given(_rates, _gpus, _delta, st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.data())
def test_each_group_finishes_once_and_devices_serve_one_group_at_a_time(
    rates: Rates, gpus: int, delta: float, alpha: float, data: st.DataObject
) -> None:
    epochs = data.draw(st.fixed_dictionaries(dict.fromkeys(rates, _epochs)))
    found = {m: fleet.plan(rates, gpus, epochs, delta=delta, alpha=alpha, method=m)
             for m in ("global", "local", "improved", "best")}  # fmt: skip
    for plan in found.values():
        assert sorted(name for flotilla in plan.flotillas for name in flotilla.finished) == sorted(rates)
        held: dict[int, list[tuple[float, float]]] = {}
        for flotilla in plan.flotillas:
            assert flotilla.devices.keys() == flotilla.ends_s.keys()
            for name, devices in flotilla.devices.items():
                assert len(set(devices)) == len(devices) > 0
                for device in devices:
                    held.setdefault(device, []).append((flotilla.start_s, flotilla.ends_s[name]))
        assert set(held) <= set(range(gpus))
        for spans in held.values():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))
        assert 0 < plan.utilization <= plan.occupancy + 1e-9 <= 1 + 2e-9
    assert found["best"].makespan_s == min(plan.makespan_s for plan in found.values())


@explored
@given(_few, st.integers(1, 6), _delta)
def test_the_improved_partition_is_between_the_greedy_one_and_the_best(rates: Rates, gpus: int, delta: float) -> None:
    curves = Curves(rates, gpus)
    groups = np.arange(len(curves))
    times = Times(curves, groups, None)
    found = {
        "greedy": sets_of(chain(curves, groups, delta)),
        "improved": sets_of(improved(curves, groups, None, delta)),
        "exact": sets_of(exact(curves, groups, None, delta)),
    }
    for sets in found.values():
        assert sorted(i for members in sets for i in members) == groups.tolist()
    greedy, better, best = (times.total(sets) for sets in found.values())
    assert best * (1 - 1e-9) <= better <= greedy * (1 + 1e-9)
    assert best == pytest.approx(cheapest(rates, gpus), rel=1e-9)


def cheapest(rates: Rates, gpus: int) -> float:
    """The least time over all partitions and all counts, by trying them."""
    table = {name: fleet.extrapolate(found, gpus) for name, found in rates.items()}

    def pace(names: list[str]) -> float:
        options = itertools.product(range(1, gpus + 1), repeat=len(names))
        rated = [min(table[n][k - 1] for n, k in zip(names, counts, strict=True))
                 for counts in options if sum(counts) <= gpus]  # fmt: skip
        return max(rated, default=0.0)

    known: dict[tuple[str, ...], float] = {}

    def least(names: tuple[str, ...]) -> float:
        if not names:
            return 0.0
        if names not in known:
            options = []
            for size in range(min(len(names), gpus)):
                for others in itertools.combinations(names[1:], size):
                    rest = tuple(n for n in names[1:] if n not in others)
                    options.append(1 / pace([names[0], *others]) + least(rest))
            known[names] = min(options)
        return known[names]

    return least(tuple(rates))
