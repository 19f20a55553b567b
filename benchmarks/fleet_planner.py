"""The quality of flotillas and the duration of planning, without training.

- Gaps: over random small instances with equal work, the time of FLEET's greedy partition and of the improved one,
  relative to that of the best partition, which is found by exhaustive search.
- Clusters: the five modes of `hfta_nb.fleet.simulate` for 100 groups on 20 to 160 devices.
- Planning: seconds of the planner for 1,000 devices and 10,000 groups.

    python benchmarks/fleet_planner.py [--instances 1000] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import write
from hfta_nb import fleet
from hfta_nb.workers.fleet.fleet_plan import METHODS
from hfta_nb.workers.fleet.flotillas import DELTA
from hfta_nb.workers.fleet.partition import Times, chain, exact, improved, sets_of
from hfta_nb.workers.fleet.rates import Curves

SLOWEST, FASTEST = 21.0, 176.0
"""Rates on one device in samples/s, the range of the paper's hundred networks."""

_EQUAL = 1e-9


def rates_of(random: np.random.Generator, groups: int, measured: int) -> dict[str, list[float]]:
    """Random rates: on one device log-uniform, on m devices m to a random power between 0.5 and 1 as much."""
    one = np.exp(random.uniform(np.log(SLOWEST), np.log(FASTEST), groups))
    powers = random.uniform(0.5, 1.0, groups)
    table = one[:, None] * np.arange(1, measured + 1) ** powers[:, None]
    return {str(i): row for i, row in enumerate(table.tolist())}


def gaps(instances: int, seed: int = 0) -> dict[str, Any]:
    """Time over that of the best partition, less one, of instances with 3 to 8 groups and 2 to 12 devices."""
    random = np.random.default_rng(seed)
    found: dict[str, list[float]] = {"greedy": [], "improved": []}
    for _ in range(instances):
        groups, gpus = int(random.integers(3, 9)), int(random.integers(2, 13))
        curves = Curves(rates_of(random, groups, gpus), gpus)
        places = np.arange(groups)
        times = Times(curves, places, None)
        best = times.total(sets_of(exact(curves, places, None, DELTA)))
        found["greedy"].append(times.total(sets_of(chain(curves, places, DELTA))) / best - 1)
        found["improved"].append(times.total(sets_of(improved(curves, places, None, DELTA))) / best - 1)
    pairs = list(zip(found["greedy"], found["improved"], strict=True))
    means = {name: statistics.mean(values) for name, values in found.items()}
    return {
        "instances": instances,
        "seed": seed,
        **{name: _spread(values) for name, values in found.items()},
        "share_of_mean_gap_closed": round(1 - means["improved"] / means["greedy"], 5),
        "improved_worse_than_greedy": sum(better > greedy + _EQUAL for greedy, better in pairs),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean_gap": round(statistics.mean(values), 6),
        "median_gap": round(statistics.median(values), 6),
        "largest_gap": round(max(values), 6),
        "share_optimal": round(sum(value <= _EQUAL for value in values) / len(values), 4),
    }


def clusters(devices: Sequence[int], groups: int = 100, seed: int = 0) -> list[dict[str, Any]]:
    """Each way's speedup over one group per device, for groups that train for 20 to 100 epochs."""
    random = np.random.default_rng(seed)
    rates = rates_of(random, groups, 8)
    epochs = {name: int(random.integers(20, 101)) for name in rates}
    rows = []
    for gpus in devices:
        plans = fleet.simulate(rates, gpus, epochs, samples_per_epoch=50_000, gpus_per_node=4, checkpoint_s=34).plans
        alone_s = plans["one per device"].makespan_s
        rows += [
            {
                "devices": gpus,
                "way": way,
                "method": plan.method,
                "makespan_h": round(plan.makespan_s / 3600, 3),
                "speedup": round(alone_s / plan.makespan_s, 3),
                "utilization": round(plan.utilization, 3),
                "flotillas": len(plan.flotillas),
            }
            for way, plan in plans.items()
        ]
    return rows


def planning(gpus: int, groups: int, seed: int = 0) -> dict[str, Any]:
    """Seconds that each method of `plan` takes, all of them, and the simulation."""
    random = np.random.default_rng(seed)
    rates = rates_of(random, groups, 8)
    epochs = {name: int(random.integers(1, 101)) for name in rates}
    found: dict[str, Any] = {"devices": gpus, "groups": groups}
    for method in (*METHODS[:-1], "best"):
        begin_s = time.perf_counter()
        plan = fleet.plan(rates, gpus, epochs, samples_per_epoch=50_000, gpus_per_node=4, method=method)
        found[f"{method}_s"] = round(time.perf_counter() - begin_s, 3)
        found[f"{method}_makespan_h"] = round(plan.makespan_s / 3600, 3)
        found[f"{method}_flotillas"] = len(plan.flotillas)
    begin_s = time.perf_counter()
    fleet.simulate(rates, gpus, epochs, samples_per_epoch=50_000, gpus_per_node=4)
    return found | {"simulate_s": round(time.perf_counter() - begin_s, 3)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1000, help="random instances for the gaps")
    parser.add_argument("--quick", action="store_true", help="little of everything, and no file")
    given = parser.parse_args(arguments)
    found = {
        "gaps": gaps(20 if given.quick else given.instances),
        "clusters": clusters([20] if given.quick else [20, 40, 60, 80, 100, 120, 140, 160], 30 if given.quick else 100),
        "planning": planning(*((20, 100) if given.quick else (1000, 10_000))),
    }
    for name, value in found.items():
        for row in value if isinstance(value, list) else [value]:
            print(name, row)
    if not given.quick:
        print(write("fleet_planner", found))


if __name__ == "__main__":
    main()
