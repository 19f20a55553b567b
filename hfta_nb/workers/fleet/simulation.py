"""What a run would take on devices that one does not have yet, planned in several ways."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hfta_nb.workers.fleet.fleet_plan import Epochs, Run, methods_for, run_of
from hfta_nb.workers.fleet.flotillas import ALPHA, DELTA
from hfta_nb.workers.fleet.plan_records import Flotilla, Plan
from hfta_nb.workers.fleet.rates import Curves, Floats, Integers, within

if TYPE_CHECKING:
    import pandas

ALONE, SHARED, LOCAL, GLOBAL, BEST = "one per device", "one shared stream", "FLEET-L", "FLEET-G", "best"


@dataclass(frozen=True)
class Simulation:
    """A run simulated in several ways.

    Attributes:
        plans: by the way, "one per device" first.
        price_per_device_h: of one device for one hour, in any currency.
    """

    plans: Mapping[str, Plan]
    price_per_device_h: float

    def table(self) -> pandas.DataFrame:
        """One row per way: makespan, speedup over one group per device, use of the devices, flotillas, cost."""
        from hfta_nb.figures.tables import Table

        alone_s = self.plans[ALONE].makespan_s
        rows = [
            {
                "way": way,
                "makespan_s": plan.makespan_s,
                "speedup": alone_s / plan.makespan_s,
                "utilization": plan.utilization,
                "occupancy": plan.occupancy,
                "flotillas": len(plan.flotillas),
                "cost": plan.cost(self.price_per_device_h),
                "method": plan.method,
            }
            for way, plan in self.plans.items()
        ]
        shown: dict[str, Callable[[Any], str]] = dict.fromkeys(("utilization", "occupancy"), "{:.0%}".format)
        return Table(rows, "way", [name for name in rows[0] if name not in ("way", "method")], shown)


def simulate(
    rates: Mapping[str, Sequence[float]],
    gpus: int,
    epochs: Epochs,
    *,
    samples_per_epoch: float = 1.0,
    gpus_per_node: int | None = None,
    delta: float = DELTA,
    alpha: float = ALPHA,
    checkpoint_s: float = 0.0,
    price_per_device_h: float = 0.0,
) -> Simulation:
    """Simulate a run on virtual devices, in five ways.

    - "one per device": groups take turns in the given order, each with a stream of its own.
    - "one shared stream": as many groups as there are devices train at the same time on one stream, one device each;
      the next begin once all of them have finished.
    - "FLEET-L" and "FLEET-G": FLEET's local and global paradigm.
    - "best": the plan that `plan` gives.

    Only training is simulated. Rates are what groups reach when batches never run out: where preprocessing is the
    bottleneck, "one per device", which prepares every batch once per group, takes longer than this says.

    Args:
        rates: as `plan` takes them.
        gpus: number of devices, from 1.
        epochs: how long each group trains, as `plan` takes it.
        samples_per_epoch: samples in an epoch, more than 0.
        gpus_per_node: devices of a node, from 1; None if all are on one.
        delta: see `create_flotilla`, in samples/s.
        alpha: share of the devices, from 0 to 1, below which a flotilla stops and a new one is made.
        checkpoint_s: time that it takes to stop one flotilla and start the next, in seconds.
        price_per_device_h: of one device for one hour, in any currency, 0 or more.

    Returns:
        The plans, and a table of them.

    Raises:
        FleetError: an argument is out of its range, a group has no epochs, or one does not converge.

    Example:
        >>> rates = {"a": [100, 190, 270, 350], "b": [80, 150, 220, 280], "c": [40, 75, 105, 120]}
        >>> round(simulate(rates, 4, epochs=10, samples_per_epoch=6000).plans["FLEET-G"].makespan_s)
        814
    """
    price = within(price_per_device_h, "price_per_device_h", 0.0, float("inf"))
    run = run_of(rates, gpus, epochs, samples_per_epoch, gpus_per_node, delta, alpha, checkpoint_s)
    by_method = {name: run.plan(name) for name in methods_for(run.curves)}
    plans = {
        ALONE: one_per_device(run),
        SHARED: run.replay(SHARED, _first, alpha=0.0),
        LOCAL: by_method["local"],
        GLOBAL: by_method["global"],
        BEST: min(by_method.values(), key=lambda plan: plan.makespan_s),
    }
    return Simulation(plans, price)


def _first(curves: Curves, groups: Integers, gpus: int, left: Floats | None) -> dict[int, int]:
    return dict.fromkeys(groups[:gpus].tolist(), 1)


def one_per_device(run: Run) -> Plan:
    """Groups in their order, each on the device that is free first."""
    free = [(0.0, device) for device in range(run.curves.gpus)]
    found = []
    for name, samples, rate in zip(run.curves.names, run.left.tolist(), run.curves.table[:, 0].tolist(), strict=True):
        start_s, device = free[0]
        end_s = start_s + samples / rate
        heapq.heapreplace(free, (end_s, device))
        found.append(Flotilla(start_s, rate, {name: (device,)}, {name: end_s}, (name,)))
    return Plan(ALONE, run.curves.gpus, tuple(found), float((run.left / run.curves.table[:, 0]).sum()))
