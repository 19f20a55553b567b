"""The processor: load per core, memory."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable
from typing import Any

import psutil

from hfta_nb.records.telemetry.sampler import Sampler, fraction

SHORTEST_S = 0.05
"""Processor time is counted in ticks of about 10 ms; the load over a shorter time would be mostly rounding."""


class ProcessorSampler(Sampler):
    """Load of each core that this process may use, memory of the machine and of this process.

    The loads are computed from `psutil.cpu_times`, because `psutil.cpu_percent` keeps one "last time" for the whole
    process, so that two samplers (or a user's call) would shorten each other's intervals.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self._process = psutil.Process()
        self._cores = usable_cores()
        self._last: list[tuple[float, float]] | None = None
        with contextlib.suppress(Exception):
            self._last = self._times()

    def _counters(self) -> tuple[Callable[[], dict[str, float]], ...]:
        return self._load, self._memory, self._own_memory

    def _load(self) -> dict[str, float]:
        now = self._times()
        if self._last is None or len(self._last) != len(now):  # a core was switched on or off
            self._last = now
            return {}
        spent = [(busy - b, whole - w) for (busy, whole), (b, w) in zip(now, self._last, strict=True)]
        if max(whole for _, whole in spent) < SHORTEST_S:
            return {}
        self._last = now
        # Some containers list only their own cores, renumbered; then all of them are used.
        all_meant = max(self._cores) >= len(now)
        return {f"core{i}": fraction(*s) for i, s in enumerate(spent) if (all_meant or i in self._cores) and s[1] > 0}

    @staticmethod
    def _times() -> list[tuple[float, float]]:
        """Per core of the machine, seconds that it was busy and seconds in all since it started."""
        return [_busy_and_whole(core) for core in psutil.cpu_times(percpu=True)]

    @staticmethod
    def _memory() -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {"memory_bytes": float(memory.total - memory.available), "memory_total_bytes": float(memory.total)}

    def _own_memory(self) -> dict[str, float]:
        return {"process_memory_bytes": float(self._process.memory_info().rss)}


def usable_cores() -> set[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


@functools.cache
def processor_name() -> str:
    """The processor's name and how many of its cores this process may use."""
    cores = len(usable_cores())
    name = _model() or platform.processor() or platform.machine()
    return f"{name}, {cores} {'core' if cores == 1 else 'cores'}"


def _busy_and_whole(times: Any) -> tuple[float, float]:
    # As in psutil.cpu_percent: user time includes guest time, and waiting for a disk is idle time.
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return whole - times.idle - getattr(times, "iowait", 0.0), whole


def _model() -> str:
    """The model from Linux' list of processors, where `platform.processor` is empty or says no more than x86_64."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return ""
