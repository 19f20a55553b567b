"""All vectors of FLEET's example, as in the paper and counted by hand."""

from __future__ import annotations

import pytest

import hfta_nb as hfta
from hfta_nb import fleet

RATES = {
    "1": [100.0, 190, 270, 350],
    "2": [80.0, 150, 220, 280],
    "3": [80.0, 150, 200, 240],
    "4": [40.0, 75, 105, 120],
}


def of(names: str) -> dict[str, list[float]]:
    return {name: RATES[name] for name in names}


@pytest.mark.parametrize(
    ("candidates", "flotilla", "pace"),
    [
        ("1234", {"1": 1, "4": 3}, 100),
        ("23", {"2": 2, "3": 2}, 150),
        ("234", {"2": 1, "3": 1, "4": 2}, 75),
        ("123", {"1": 1, "2": 2, "3": 1}, 80),
        ("34", {"3": 1, "4": 3}, 80),
        ("4", {"4": 4}, 120),
    ],
)
def test_flotillas(candidates: str, flotilla: dict[str, int], pace: float) -> None:
    found = hfta.fleet.create_flotilla(of(candidates), 4)
    assert found == flotilla
    assert min(RATES[name][count - 1] for name, count in found.items()) == pace


@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0])
def test_alpha_does_not_change_who_is_in_a_flotilla(alpha: float) -> None:
    assert fleet.create_flotilla(RATES, 4, delta=20.0, alpha=alpha) == {"1": 1, "4": 3}


def test_extrapolated_rates_never_fall() -> None:
    found = fleet.extrapolate(RATES["4"], 8)
    assert [round(rate, 2) for rate in found] == [40, 75, 105, 120, 128.57, 132.24, 132.24, 132.24]
    found = fleet.extrapolate(RATES["1"], 8)
    assert [round(rate, 2) for rate in found] == [100, 190, 270, 350, 425.35, 496.24, 562.86, 625.40]


def counts_of(plan: fleet.Plan) -> list[dict[str, int]]:
    return [flotilla.counts for flotilla in plan.flotillas]


def test_the_run_with_equal_work_and_its_optimum() -> None:
    greedy = fleet.plan(RATES, 4, 1, method="global")
    assert counts_of(greedy) == [{"1": 1, "4": 3}, {"2": 2, "3": 2}]
    assert greedy.makespan_s == pytest.approx(1 / 100 + 1 / 150, rel=1e-12)
    for method in ("exact", "improved", "best"):
        best = fleet.plan(RATES, 4, 1, method=method)
        assert counts_of(best) == [{"1": 4}, {"2": 1, "3": 1, "4": 2}]
        assert best.makespan_s == pytest.approx(1 / 350 + 1 / 75, rel=1e-12)
        assert round(best.makespan_s, 5) == 0.01619
    together = fleet.simulate(RATES, 4, 1).plans["one shared stream"]
    assert counts_of(together) == [dict.fromkeys("1234", 1)]
    assert together.makespan_s == pytest.approx(0.025, rel=1e-12)


def test_a_smaller_delta() -> None:
    assert counts_of(fleet.plan(RATES, 4, 1, delta=4, method="global")) == [{"1": 4}, {"2": 2, "3": 2}, {"4": 4}]


def test_the_flotilla_after_one_group_has_finished() -> None:
    """Rows of the table above as they come about in a run: alpha of 4 devices is 3.2."""
    rounds = fleet.Rounds(RATES, 4, gpus_per_node=2)
    assert rounds.start() == {"1": [3], "4": [0, 1, 2]}
    change = rounds.finish(["1"])
    assert change.stopped == ("4",)
    assert {name: len(devices) for name, devices in change.started.items()} == {"2": 1, "3": 1, "4": 2}
    rounds = fleet.Rounds(RATES, 4, gpus_per_node=2)
    rounds.start()
    change = rounds.finish(["4"])
    assert change.stopped == ("1",)
    assert {name: len(devices) for name, devices in change.started.items()} == {"1": 1, "2": 2, "3": 1}


def score(found: dict[str, list[int]], per_node: int) -> float:
    return sum(len({device // per_node for device in devices}) / len(devices) for devices in found.values())


def test_the_devices_of_the_first_flotilla() -> None:
    found = fleet.assign_devices({"1": 1, "4": 3}, 2)
    assert found == {"1": [3], "4": [0, 1, 2]}
    assert round(score(found, 2), 3) == 1.667


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([4, 2, 2, 3, 1], 2.5833),
        ([3, 3, 2], 1.5),
        ([2, 6, 3, 5], 1.5667),
        ([5, 3], 0.7333),
        ([3, 3, 1, 1], 2.6667),
        ([2, 6, 3, 3, 2], 2.1667),
    ],
)
def test_scores_of_placements(counts: list[int], expected: float) -> None:
    found = fleet.assign_devices({str(i): count for i, count in enumerate(counts)}, 4)
    assert {name: len(devices) for name, devices in found.items()} == {str(i): n for i, n in enumerate(counts)}
    assert sorted(device for devices in found.values() for device in devices) == list(range(sum(counts)))
    assert round(score(found, 4), 4) == expected


def test_a_placement_with_nodes_pairs_and_sides() -> None:
    found = fleet.assign_devices({str(i): count for i, count in enumerate([4, 2, 2, 3, 1])}, 4)
    assert found == {"0": [0, 1, 2, 3], "1": [6, 7], "2": [4, 5], "3": [9, 10, 11], "4": [8]}
