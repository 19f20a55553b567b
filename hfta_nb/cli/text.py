"""Values as text for a terminal: few digits, with units, on one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hfta_nb.errors.plain_text import visible as clean
from hfta_nb.records.events import Json
from hfta_nb.search.grid import show

__all__ = ["clean", "config", "count", "duration", "ids", "left", "memory", "metric", "percent", "several"]

NOTHING = "-"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(time_s: float) -> str:
    """``0:41`` or ``1:02:03``."""
    if not math.isfinite(time_s):
        return NOTHING
    minutes, seconds = divmod(max(0, round(time_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def left(time_s: float) -> str:
    """``0:41 left``; ``estimating`` if unknown."""
    return f"{duration(time_s)} left" if math.isfinite(time_s) else "estimating"


def metric(value: float) -> str:
    """Four digits; ``-`` if there is no number."""
    return f"{value:.4g}" if math.isfinite(value) else NOTHING


def count(number: float) -> str:
    """A whole number with thousands separators."""
    return f"{number:,.0f}" if math.isfinite(number) else NOTHING


def several(number: int, thing: str) -> str:
    """``1 variant``, ``2 variants``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def memory(size_bytes: float) -> str:
    """``512 B``, ``41.0 MiB``, ``139 GiB``."""
    if not math.isfinite(size_bytes):
        return NOTHING
    unit = 0
    while abs(size_bytes) >= 1000 and unit < len(UNITS) - 1:
        size_bytes, unit = size_bytes / 1024, unit + 1
    digits = 0 if unit == 0 or size_bytes >= 99.95 else 1
    return f"{size_bytes:.{digits}f} {UNITS[unit]}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%" if math.isfinite(fraction) else NOTHING


def config(values: Mapping[str, Json]) -> str:
    """``lr=0.001, width=16``."""
    return clean(", ".join(f"{name}={show(value)}" for name, value in values.items()))


def ids(numbers: Iterable[int]) -> str:
    """``0-5, 7``: runs of three or more are shortened."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    shown = (f"{p[0]}-{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)
    return ", ".join(shown)
