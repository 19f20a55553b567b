"""Training rates and memory of groups, measured in few batches and kept on disk."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hfta_nb.errors import FleetError, out_of_memory
from hfta_nb.records import regular_files
from hfta_nb.workers.fleet.rates import positive

BATCHES = 48
"""Batches that a group trains on to be measured, at most."""

COUNTED = 20
"""The last of them, which count: the first ones warm up."""

WARM_UP_S = 2.0
"""After so long a group with slow batches is warm, however few they were."""


class Trial(Protocol):
    """A group opened on devices, to be measured."""

    def train(self) -> int:
        """Train on one batch, and return its number of samples once the devices are done with it."""

    def memory_bytes(self) -> int:
        """The most memory that training takes on a device, in bytes."""


Opens = Callable[[str, int, int], AbstractContextManager[Trial]]
"""Opens a group by name with so many members on so many devices."""


@dataclass(frozen=True)
class Measured:
    """What was measured of a group.

    Attributes:
        members: of the array; fewer than asked for where not all fit a device.
        rates: samples/s on 1, 2, ... devices.
        memory_bytes: the most that training takes on a device, of each of these.
    """

    members: int
    rates: tuple[float, ...]
    memory_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """What was measured of groups.

    Attributes:
        groups: by name.
    """

    groups: Mapping[str, Measured]

    @property
    def rates(self) -> dict[str, tuple[float, ...]]:
        """Training rates as `plan` takes them."""
        return {name: found.rates for name, found in self.groups.items()}


def profile(
    opens: Opens,
    members: Mapping[str, int],
    gpus: int,
    *,
    gpus_per_node: int = 1,
    free_bytes: int | None = None,
    cache: Path | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure training rates and memory of groups, on few devices.

    Each group trains on at most 48 batches on one device, of which the last 20 count. Then all are measured on 2, 3,
    ... devices: up to the ratio of the fastest to the slowest group, or two nodes, whichever is more. `plan`
    extrapolates beyond. A group that does not fit a device is measured with half its members, and so on.

    Args:
        opens: opens a group by name with a number of members on a number of devices.
        members: of each group, by name, from 1.
        gpus: number of devices, from 1; no more are used.
        gpus_per_node: devices of a node, from 1.
        free_bytes: memory of a device that training may take; None where running out of it is what tells.
        cache: file that measurements are kept in and read from; None to measure anew. Its name must tell apart what the
            names of groups stand for: models, data, precision and machine.
        clock: tells the time in seconds.

    Raises:
        FleetError: there are no groups, a number is out of its range, or not even one member of a group fits.

    Source:
        Guan et al., "FLEET", MLSys 2020, section on profiling. Memory and the number of members are this project's.
    """
    positive(gpus, "gpus")
    positive(gpus_per_node, "gpus_per_node")
    if not isinstance(members, Mapping) or not members:
        raise FleetError(
            "no groups to measure", where="members", got=members, accepted="a mapping from name to members"
        )
    for name, count in members.items():
        positive(count, f"members[{name!r}]")
    kept = _Kept(cache)
    bench = _Bench(opens, free_bytes, clock, kept)
    fitted = {name: bench.fitted(name, count) for name, count in members.items()}
    most = min(gpus, devices_to_measure([rate for _, rate, _ in fitted.values()], gpus_per_node))
    found = {}
    for name, (count, rate, memory) in fitted.items():
        more = [bench.measure(name, count, devices) for devices in range(2, most + 1)]
        rows = [(rate, memory)]
        for row in more:
            if row is None:  # what fits one device need not fit several, which also hold what they exchange
                break
            rows.append(row)
        found[name] = Measured(count, tuple(rate for rate, _ in rows), tuple(memory for _, memory in rows))
    return Profile(found)


def devices_to_measure(rates: list[float], gpus_per_node: int) -> int:
    """The most devices that are measured: the ratio of the fastest rate to the slowest, or two nodes.

    Args:
        rates: on one device, in samples/s.
        gpus_per_node: devices of a node.
    """
    return max(math.ceil(max(rates) / min(rates)), 2 * gpus_per_node)


def rate_of(trial: Trial, clock: Callable[[], float] = time.perf_counter) -> float:
    """Samples a second over the last 20 of at most 48 batches.

    Args:
        trial: an opened group.
        clock: tells the time in seconds.
    """
    begin_s = clock()
    for _ in range(BATCHES - COUNTED):
        trial.train()
        if clock() - begin_s > WARM_UP_S:
            break
    begin_s, samples = clock(), 0
    for _ in range(COUNTED):
        samples += trial.train()
    return samples / max(1e-9, clock() - begin_s)


class _Bench:
    """Measures groups that fit, and looks up those that were measured before."""

    def __init__(self, opens: Opens, free_bytes: int | None, clock: Callable[[], float], kept: _Kept) -> None:
        self._opens, self._free_bytes, self._clock, self._kept = opens, free_bytes, clock, kept

    def fitted(self, name: str, members: int) -> tuple[int, float, int]:
        """Members that fit one device, their rate and memory."""
        count = members
        while count:
            found = self.measure(name, count, 1)
            if found is not None:
                return (count, *found)
            count //= 2
        raise FleetError("not even one member fits a device", where=name, got=members,
                         accepted=f"a group that takes at most {self._free_bytes} bytes" if self._free_bytes else "",
                         remedy="use smaller batches or models")  # fmt: skip

    def measure(self, name: str, members: int, devices: int) -> tuple[float, int] | None:
        """Rate and memory; None if they don't fit."""
        known = self._kept.get(name, members, devices)
        if known is not None:
            return known if self._fits(known[1]) else None
        try:
            with self._opens(name, members, devices) as trial:
                memory = trial.memory_bytes()
                if not self._fits(memory):
                    return None
                rate = rate_of(trial, self._clock)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return None
        self._kept.put(name, members, devices, rate, memory)
        return rate, memory

    def _fits(self, memory: int) -> bool:
        return self._free_bytes is None or memory <= self._free_bytes


class _Kept:
    """Measurements in a JSON file; a file that can't be read is none, one that can't be written is done without."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        try:
            found = regular_files.parsed(regular_files.text(path)) if path else {}
        except (OSError, ValueError):
            return
        self._found = found if isinstance(found, dict) else {}

    def get(self, name: str, members: int, devices: int) -> tuple[float, int] | None:
        row: Any = self._found.get(_key(name, members, devices))
        try:
            rate, memory = row
            return (float(rate), int(memory)) if rate > 0 else None
        except (TypeError, ValueError):
            return None

    def put(self, name: str, members: int, devices: int, rate: float, memory: int) -> None:
        self._found[_key(name, members, devices)] = [rate, memory]
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            part.write_text(json.dumps(self._found, indent=0), encoding="utf-8")
            os.replace(part, self._path)
        except OSError:
            self._path = None


def _key(name: str, members: int, devices: int) -> str:
    return f"{members} members on {devices} devices: {name}"
