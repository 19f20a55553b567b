"""What a plan consists of: flotillas with their devices and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfta_nb.workers.fleet.rates import within

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Flotilla:
    """Groups that start at the same time on one shared stream of batches.

    Attributes:
        start_s: time since the beginning of the run, in seconds.
        rate: of its slowest group when it starts, in samples/s.
        devices: indices of each group's devices, by name.
        ends_s: when each group leaves its devices, by name.
        finished: groups that leave because they have finished; the others are checkpointed and go on later.
    """

    start_s: float
    rate: float
    devices: Mapping[str, tuple[int, ...]]
    ends_s: Mapping[str, float]
    finished: tuple[str, ...]

    @property
    def end_s(self) -> float:
        """When its last group leaves."""
        return max(self.ends_s.values())

    @property
    def counts(self) -> dict[str, int]:
        """Number of devices by name."""
        return {name: len(devices) for name, devices in self.devices.items()}


@dataclass(frozen=True)
class Plan:
    """The plan of a whole run.

    Attributes:
        method: which method made it.
        gpus: number of devices.
        flotillas: in the order in which they start.
        computing_device_s: seconds in which devices compute, summed over devices. A device that serves a group faster
            than its flotilla computes part of the time only.
    """

    method: str
    gpus: int
    flotillas: tuple[Flotilla, ...]
    computing_device_s: float

    @property
    def makespan_s(self) -> float:
        """When the last group finishes."""
        return max(flotilla.end_s for flotilla in self.flotillas)

    @property
    def utilization(self) -> float:
        """Share of all devices' time in which they compute, from 0 to 1."""
        return self.computing_device_s / (self.gpus * self.makespan_s)

    @property
    def occupancy(self) -> float:
        """Share of all devices' time in which a group holds them, from 0 to 1."""
        held_s = sum(
            len(f.devices[name]) * (end_s - f.start_s) for f in self.flotillas for name, end_s in f.ends_s.items()
        )
        return held_s / (self.gpus * self.makespan_s)

    def cost(self, price_per_device_h: float) -> float:
        """What the devices cost until the last group finishes.

        Args:
            price_per_device_h: of one device for one hour, in any currency, 0 or more.

        Raises:
            FleetError: the price is negative.
        """
        price = within(price_per_device_h, "price_per_device_h", 0.0, float("inf"))
        return self.gpus * self.makespan_s / 3600 * price

    def table(self) -> pandas.DataFrame:
        """One row per flotilla: when it starts and ends, its rate, and how many groups, devices and finishes it has."""
        from hfta_nb.figures.tables import Table

        rows = [
            {
                "flotilla": i,
                "start_s": f.start_s,
                "end_s": f.end_s,
                "rate": f.rate,
                "groups": len(f.devices),
                "devices": sum(map(len, f.devices.values())),
                "finished": len(f.finished),
                "names": ", ".join(f"{name}: {count}" for name, count in f.counts.items()),
            }
            for i, f in enumerate(self.flotillas)
        ]
        return Table(rows, "flotilla", list(rows[0])[1:7])
