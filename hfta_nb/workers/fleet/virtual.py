"""Rounds over virtual devices: time passes, and nothing trains."""

from __future__ import annotations

import numpy as np

from hfta_nb.workers.fleet.plan_records import Flotilla, Plan
from hfta_nb.workers.fleet.rates import Curves, Floats
from hfta_nb.workers.fleet.rounds import IndexedRounds


def replay(rounds: IndexedRounds, left: Floats, known: bool, checkpoint_s: float, method: str) -> Plan:
    """Let time run over virtual devices.

    Args:
        rounds: who starts and stops.
        left: samples that each group trains on.
        known: True if the chooser may see how much each has left.
        checkpoint_s: between two flotillas.
        method: the name that the plan gets.
    """
    curves, whole, left = rounds.curves, left, left.copy()
    now_s = computing_s = 0.0
    begun: list[tuple[float, dict[int, list[int]]]] = []
    ends: list[dict[int, tuple[float, bool]]] = []
    flotilla_of: dict[int, int] = {}
    started = rounds.start(left if known else None)
    active = np.array([], dtype=np.int64)
    while rounds.running:
        if started:
            begun.append((now_s, started))
            ends.append({})
            flotilla_of |= dict.fromkeys(started, len(begun) - 1)
            active = np.fromiter(rounds.running, np.int64)
            devices = np.array([len(rounds.running[i]) for i in active.tolist()])
            rate = curves.table[active, devices - 1]
        pace = float(rate.min())
        least = float(left[active].min())
        now_s += least / pace
        computing_s += least * float((devices / rate).sum())
        left[active] -= least
        over = left[active] <= 1e-9 * whole[active]  # sums of fractions end a little off zero
        finished = active[over].tolist()
        stopped, started = rounds.finish(finished, left if known else None)
        for group, complete in [*((i, True) for i in finished), *((i, False) for i in stopped)]:
            ends[flotilla_of[group]][group] = (now_s, complete)
        active, devices, rate = active[~over], devices[~over], rate[~over]
        if started and not rounds.refill:
            now_s += checkpoint_s
    return Plan(method, curves.gpus, _records(curves, begun, ends), computing_s)


def _records(
    curves: Curves, begun: list[tuple[float, dict[int, list[int]]]], ends: list[dict[int, tuple[float, bool]]]
) -> tuple[Flotilla, ...]:
    found = []
    for (start_s, started), end in zip(begun, ends, strict=True):
        rate = min(float(curves.table[i, len(devices) - 1]) for i, devices in started.items())
        found.append(
            Flotilla(
                start_s,
                rate,
                {curves.names[i]: tuple(devices) for i, devices in started.items()},
                {curves.names[i]: time_s for i, (time_s, _) in end.items()},
                tuple(curves.names[i] for i, (_, complete) in end.items() if complete),
            )
        )
    return tuple(found)
