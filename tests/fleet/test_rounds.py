"""Rounds of flotillas: starts, stops, and the duration of a run."""

from __future__ import annotations

import pytest

from hfta_nb import fleet
from hfta_nb.errors import FleetError

EVEN = {"a": [100.0], "b": [90.0], "c": [80.0], "d": [70.0], "e": [60.0], "f": [50.0]}


def test_a_flotilla_goes_on_while_alpha_of_the_devices_are_in_use() -> None:
    rounds = fleet.Rounds(EVEN, 5, delta=100, alpha=0.6)
    assert rounds.start() == {name: [device] for device, name in enumerate("abcde")}
    assert rounds.finish(["a"]) == fleet.Change()
    assert rounds.finish([]) == fleet.Change()
    assert rounds.finish(["c"]) == fleet.Change()  # three of five are 0.6
    change = rounds.finish(["b"])
    assert set(change.stopped) == {"d", "e"}
    assert set(change.started) == {"d", "e", "f"}
    assert not rounds.done
    assert rounds.finish(["d", "e", "f"]) == fleet.Change()
    assert rounds.done


def test_alpha_of_the_devices_is_not_missed_by_rounding() -> None:
    rates = {str(i): [100.0] for i in range(20)}
    rounds = fleet.Rounds(rates, 20, alpha=0.55)  # 0.55 * 20 is a little more than 11
    rounds.start()
    assert rounds.finish([str(i) for i in range(9)]) == fleet.Change()
    assert len(rounds.finish(["9"]).stopped) == 10


def test_local_rounds_fill_the_released_devices_and_stop_nobody() -> None:
    rounds = fleet.Rounds(EVEN, 2, gpus_per_node=1, delta=100, paradigm="local")
    assert rounds.start() == {"a": [0], "b": [1]}
    assert rounds.finish(["a"]) == fleet.Change((), {"c": [0]})
    assert rounds.finish(["b", "c"]) == fleet.Change((), {"d": [0], "e": [1]})
    assert rounds.finish(["e"]) == fleet.Change((), {"f": [1]})
    assert rounds.finish(["d"]) == fleet.Change()
    assert rounds.finish(["f"]) == fleet.Change()
    assert rounds.done


@pytest.mark.parametrize("names", [["f"], ["a", "a"], ["nobody"]])
def test_only_groups_that_run_finish_and_once(names: list[str]) -> None:
    rounds = fleet.Rounds(EVEN, 2)
    rounds.start()
    with pytest.raises(FleetError, match=names[0]):
        rounds.finish(names)
    with pytest.raises(FleetError, match="started already"):
        rounds.start()


def test_a_group_that_is_checkpointed_goes_on_where_it_was() -> None:
    """Two devices: a and b at 50, a ends after 2 s; b and c, of which b has 100 samples left, at 50."""
    rates = {"a": [60.0, 61], "b": [50.0, 51], "c": [50.0, 51]}
    plan = fleet.plan(rates, 2, {"a": 1, "b": 2, "c": 1}, samples_per_epoch=100, method="global", checkpoint_s=5)
    first, second = plan.flotillas
    assert (first.start_s, first.ends_s, first.finished, first.rate) == (0.0, {"a": 2.0, "b": 2.0}, ("a",), 50.0)
    assert (second.start_s, second.ends_s, second.finished) == (7.0, {"b": 9.0, "c": 9.0}, ("b", "c"))
    assert plan.makespan_s == 9.0
    assert plan.computing_device_s == pytest.approx(100 / 60 + 100 / 50 * 3, rel=1e-12)
    assert plan.utilization == pytest.approx(plan.computing_device_s / 18, rel=1e-12)
    assert plan.occupancy == pytest.approx((2 + 2 + 2 + 2) / 18, rel=1e-12)
    assert plan.cost(3.6) == pytest.approx(2 * 9 / 3600 * 3.6, rel=1e-12)


def test_the_pace_rises_when_the_slowest_has_finished() -> None:
    """10 samples at 5/s, then 30 at 10/s."""
    rates = {"fast": [10.0], "slow": [5.0]}
    plan = fleet.plan(rates, 2, {"fast": 4, "slow": 1}, samples_per_epoch=10, delta=5, alpha=0.5, method="global")
    (only,) = plan.flotillas
    assert only.ends_s == {"slow": 2.0, "fast": 5.0}


def test_a_callback_ends_groups_at_the_end_of_an_epoch() -> None:
    asked: list[tuple[str, int]] = []

    def converged(name: str, epoch: int) -> bool:
        asked.append((name, epoch))
        return epoch == {"a": 2, "b": 3, "c": 1, "d": 1, "e": 1, "f": 1}[name]

    found = fleet.plan(EVEN, 3, converged, method="global")
    told = fleet.plan(EVEN, 3, {"a": 2, "b": 3, "c": 1, "d": 1, "e": 1, "f": 1}, method="global")
    assert found == told
    assert asked[:5] == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)]


def test_one_device_trains_groups_one_after_another() -> None:
    plan = fleet.plan(EVEN, 1, 1, samples_per_epoch=100)
    assert [flotilla.counts for flotilla in plan.flotillas] == [{name: 1} for name in "abcdef"]
    assert plan.makespan_s == pytest.approx(sum(100 / rate[0] for rate in EVEN.values()), rel=1e-12)


def test_the_best_plan_is_that_of_the_quickest_method() -> None:
    rates = {"a": [100.0, 190, 270, 350], "b": [80.0, 150, 220, 280], "c": [40.0, 75, 105, 120], "d": [90.0, 100]}
    epochs = {"a": 5, "b": 3, "c": 8, "d": 2}
    by_method = {m: fleet.plan(rates, 4, epochs, method=m) for m in ("global", "local", "improved", "exact")}
    best = fleet.plan(rates, 4, epochs)
    assert best.makespan_s == min(plan.makespan_s for plan in by_method.values())
    assert best == by_method[best.method]


def test_a_table_has_a_row_for_each_flotilla() -> None:
    table = fleet.plan(EVEN, 2, 1, method="global").table()
    assert next(iter(table["names"])) == "a: 1, b: 1"
    assert list(table["devices"]) == [2, 2, 2]


# Input.


@pytest.mark.parametrize(
    "rates",
    [{}, {"a": []}, {"a": [1.0, -2.0]}, {"a": [0.0]}, {"a": [float("nan")]}, {"a": 3}, {"a": "12"}, [("a", [1])]],
)
def test_rates_that_are_none(rates: object) -> None:
    with pytest.raises(FleetError, match="rates"):
        fleet.create_flotilla(rates, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", [0, -1, 2.5, True, "4"])
def test_numbers_of_devices_that_are_none(gpus: object) -> None:
    with pytest.raises(FleetError, match="gpus"):
        fleet.create_flotilla(EVEN, gpus)  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="gpus"):
        fleet.Rounds(EVEN, gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"delta": -1}, "delta"),
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": None}, "alpha"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": {"a": 1}}, "no epochs"),
        ({"epochs": dict.fromkeys("abcdefg", 1)}, "unknown group"),
        ({"epochs": float("inf")}, "epochs"),
        ({"epochs": lambda name, epoch: False}, "converge"),
        ({"samples_per_epoch": 0}, "samples_per_epoch"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"checkpoint_s": -1}, "checkpoint_s"),
        ({"method": "fastest"}, "method"),
    ],
)
def test_arguments_that_are_out_of_range(wrong: dict[str, object], where: str) -> None:
    given: dict[str, object] = {"rates": EVEN, "gpus": 2, "epochs": 1} | wrong
    with pytest.raises(FleetError, match=where):
        fleet.plan(**given)  # type: ignore[arg-type]


def test_further_input() -> None:
    with pytest.raises(FleetError, match="paradigm"):
        fleet.Rounds(EVEN, 2, paradigm="both")
    with pytest.raises(FleetError, match=r"counts\['a'\]"):
        fleet.assign_devices({"a": 0}, 2)
    with pytest.raises(FleetError, match="counts"):
        fleet.assign_devices([1, 2], 2)  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="n: "):
        fleet.extrapolate([1.0], 0)
    with pytest.raises(FleetError, match="all partitions"):
        fleet.plan({str(i): [1.0] for i in range(11)}, 2, 1, method="exact")
    with pytest.raises(FleetError, match="price"):
        fleet.plan(EVEN, 2, 1).cost(-1)


def test_rates_beyond_those_measured() -> None:
    assert fleet.extrapolate([5.0], 3) == [5.0, 5.0, 5.0]  # nothing is known of a second device
    assert fleet.extrapolate([10.0, 8.0], 3) == [10.0, 10.0, 10.0]
    assert fleet.extrapolate([10.0, 30.0], 4) == [10.0, 30.0, 45.0, 60.0]  # not beyond linear
    assert fleet.extrapolate([1.0, 2.0, 3.0], 2) == [1.0, 2.0]


# Groups on one device each.


def test_groups_alone_go_longest_first_and_fill_released_devices() -> None:
    work = {"a": 1000.0, "b": 90.0, "c": 160.0, "d": 7000.0}  # 10, 1, 2 and 100 seconds
    rounds = fleet.Rounds({name: EVEN[name] for name in "abcd"}, 2, paradigm="alone", work=work, delta=0)
    first = rounds.start()
    assert set(first) == {"a", "d"}
    assert rounds.waiting == 2
    assert rounds.finish(["a"]) == fleet.Change((), {"c": first["a"]})
    assert rounds.waiting == 1
    assert rounds.finish(["d"]) == fleet.Change((), {"b": first["d"]})
    assert rounds.finish(["b", "c"]) == fleet.Change()
    assert rounds.done


def test_no_group_gets_more_devices_than_it_may() -> None:
    rates = {"a": [100.0, 190, 270, 350], "b": [40.0, 75, 105, 120]}
    assert {n: len(d) for n, d in fleet.Rounds(rates, 4).start().items()} == {"a": 1, "b": 3}
    assert {n: len(d) for n, d in fleet.Rounds(rates, 4, most=2, delta=50).start().items()} == {"a": 1, "b": 2}
    assert {n: len(d) for n, d in fleet.Rounds(rates, 4, most=1, delta=60).start().items()} == {"a": 1, "b": 1}


def test_a_flotilla_that_would_be_the_same_goes_on() -> None:
    rounds = fleet.Rounds({"a": [100.0], "b": [90.0], "c": [80.0]}, 3, most=1)
    rounds.start()
    assert rounds.finish(["a"]) == fleet.Change()  # one device is free, and nobody may have it
    other = fleet.Rounds({"a": [100.0], "b": [90.0], "c": [80.0]}, 3)
    other.start()
    assert set(other.finish(["a"]).stopped) == {"b", "c"}


def test_groups_come_in_while_others_run() -> None:
    rounds = fleet.Rounds({"a": [100.0], "b": [50.0]}, 3, paradigm="alone")
    first = rounds.start()
    assert set(first) == {"a", "b"}
    assert set(rounds.add({"c": [10.0], "d": [20.0]})) == {"c"}
    assert rounds.finish(["a"]) == fleet.Change((), {"d": first["a"]})
    everyone = fleet.Rounds({"a": [100.0]}, 2)
    everyone.start()
    assert everyone.add({"b": [100.0]}) == {}  # it waits for the next flotilla
    assert set(everyone.finish(["a"]).started) == {"b"}
    assert everyone.finish(["b"]) == fleet.Change()
    assert set(everyone.add({"c": [1.0]})) == {"c"}
    with pytest.raises(FleetError, match="there already"):
        everyone.add({"a": [1.0]})


@pytest.mark.parametrize(("wrong", "where"), [({"most": 0}, "most"), ({"work": {"a": 0.0}}, r"work\['a'\]")])
def test_limits_and_work_that_are_none(wrong: dict[str, object], where: str) -> None:
    with pytest.raises(FleetError, match=where):
        fleet.Rounds(EVEN, 2, **wrong)  # type: ignore[arg-type]
