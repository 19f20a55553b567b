"""Figures of a run or a plan, for notebooks and export. Matplotlib is imported when the first of them is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hfta_nb.figures.axis_slices import slices
    from hfta_nb.figures.canvas import png
    from hfta_nb.figures.contours import contour
    from hfta_nb.figures.flotillas import gantt, placements
    from hfta_nb.figures.fronts import pareto
    from hfta_nb.figures.maps import heat_map
    from hfta_nb.figures.parallel import parallel_coordinates
    from hfta_nb.figures.runs import curves, summary, utilization
    from hfta_nb.figures.shares import importances
    from hfta_nb.figures.speeds import speedup

_WHERE = {
    "contour": "contours",
    "curves": "runs",
    "gantt": "flotillas",
    "heat_map": "maps",
    "importances": "shares",
    "parallel_coordinates": "parallel",
    "pareto": "fronts",
    "placements": "flotillas",
    "png": "canvas",
    "slices": "axis_slices",
    "speedup": "speeds",
    "summary": "runs",
    "utilization": "runs",
}

__all__ = [
    "contour",
    "curves",
    "gantt",
    "heat_map",
    "importances",
    "parallel_coordinates",
    "pareto",
    "placements",
    "png",
    "slices",
    "speedup",
    "summary",
    "utilization",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value
