"""Simulation of five ways to train the same groups on the same devices."""

from __future__ import annotations

import pandas
import pytest

from hfta_nb import fleet
from hfta_nb.errors import FleetError

RATES = {"a": [100.0, 150], "b": [50.0, 90], "c": [100.0, 160]}


def test_one_per_device_and_one_shared_stream_by_hand() -> None:
    """Alone a ends at 1, b at 2, c on a's device at 2; on one stream a and b end at 2, c at 3."""
    found = fleet.simulate(RATES, 2, 1, gpus_per_node=1, samples_per_epoch=100, price_per_device_h=1800)
    alone, shared = found.plans["one per device"], found.plans["one shared stream"]
    assert [(f.start_s, f.devices, f.end_s) for f in alone.flotillas] == [
        (0.0, {"a": (0,)}, 1.0),
        (0.0, {"b": (1,)}, 2.0),
        (1.0, {"c": (0,)}, 2.0),
    ]
    assert alone.utilization == pytest.approx(1.0, rel=1e-12)
    assert [(f.start_s, f.devices, f.end_s) for f in shared.flotillas] == [
        (0.0, {"a": (0,), "b": (1,)}, 2.0),
        (2.0, {"c": (0,)}, 3.0),
    ]
    assert shared.utilization == pytest.approx((1 + 2 + 1) / 6, rel=1e-12)
    table = found.table()
    assert list(table.index) == ["one per device", "one shared stream", "FLEET-L", "FLEET-G", "best"]
    assert table.loc["one shared stream", "speedup"] == pytest.approx(2 / 3, rel=1e-12)
    assert table.loc["one shared stream", "cost"] == pytest.approx(3.0, rel=1e-12)
    with pandas.option_context("display.width", 200, "display.max_columns", 10):
        assert "67%" in repr(table)


def test_the_ways_of_fleet_are_those_of_the_planner() -> None:
    epochs = {"a": 3, "b": 1, "c": 2}
    plans = fleet.simulate(RATES, 2, epochs, delta=10, checkpoint_s=0.1).plans
    assert plans["FLEET-L"] == fleet.plan(RATES, 2, epochs, delta=10, method="local")
    assert plans["FLEET-G"] == fleet.plan(RATES, 2, epochs, delta=10, method="global", checkpoint_s=0.1)
    assert plans["best"] == fleet.plan(RATES, 2, epochs, delta=10, checkpoint_s=0.1)


def test_a_cluster_of_a_thousand_devices_and_ten_thousand_groups() -> None:
    rates = {str(i): [20 + i % 160, 1.8 * (20 + i % 160)] for i in range(10_000)}
    epochs = {name: 1 + place % 7 for place, name in enumerate(rates)}
    plan = fleet.plan(rates, 1000, epochs, method="global", gpus_per_node=4)
    assert sorted(name for flotilla in plan.flotillas for name in flotilla.finished) == sorted(rates)
    least_s = sum(epochs[name] / rate[0] for name, rate in rates.items()) / 1000
    assert least_s < plan.makespan_s < 2 * least_s


def test_the_price_is_checked() -> None:
    with pytest.raises(FleetError, match="price_per_device_h"):
        fleet.simulate(RATES, 2, 1, price_per_device_h=-1)
