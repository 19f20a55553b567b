"""Watch: live curves of all members and the device's utilization."""

from __future__ import annotations

import math

import ipywidgets

from hfta_nb.figures import colors
from hfta_nb.records.history import History
from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.text import memory, metric, number

_MEASUREMENTS = 3


def summary(history: History) -> str:
    """The best value and the device's last measurements in one line."""
    run = history.run
    if run is None:
        return "nothing to see yet"
    best = next((m for m in history.leaderboard() if not math.isnan(m.best_value)), None)
    parts = [f"{metric(run.monitor)} {number(best.best_value)} (#{best.id})"] if best else []
    return "; ".join([*parts, *device_words(history)]) or "no points yet"


def device_words(history: History) -> list[str]:
    """The last utilization of the device: ``SM active 92%``, ``memory 41 GiB``."""
    if not history.samples:
        return []
    values = colors.cores_together(history.samples[-1].values)
    found = []
    for line in colors.device_lines(values):
        value = values.get(line.key, math.nan)
        if not math.isfinite(value) or line.kind not in ("fraction", "memory"):
            continue
        found.append(f"{line.label} {memory(value) if line.kind == 'memory' else f'{100 * value:.0f}%'}")
    return found[:_MEASUREMENTS]


class Watch(ipywidgets.VBox):  # type: ignore[misc]
    """The live view.

    Attributes:
        live: the `LiveView`.
    """

    def __init__(self) -> None:
        self.live = LiveView()
        super().__init__([self.live])

    def __repr__(self) -> str:
        return "Watch()"
