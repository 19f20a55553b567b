"""The activity of a GPU while a mode trains."""

from __future__ import annotations

import time

from benchmarks.suite.modes.base import Mode
from hfta_nb.records import telemetry

ACTIVITY_S = 0.7
"""How long a GPU's counters are observed in each mode; they are refreshed about every tenth of a second."""


def activity(mode: Mode, step_s: float) -> dict[str, float]:
    """A GPU's counters over some laps, long enough that pauses between them are negligible."""
    steps = max(5, min(500, round(ACTIVITY_S / 4 / step_s)))
    with telemetry.sampler(mode.job.device) as sampler:
        sampler.sample()
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < ACTIVITY_S:
            mode.lap(steps)
        found = sampler.sample().values
    names = ("sm_active", "sm_occupancy", "tensor_active", "dram_active", "gpu_utilization", "power_w")
    return {name: found[name] for name in names if name in found}
