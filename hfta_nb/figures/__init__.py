"""Figures of a run or a plan, for notebooks and export."""

from hfta_nb.figures.canvas import png
from hfta_nb.figures.flotillas import gantt
from hfta_nb.figures.maps import heat_map
from hfta_nb.figures.runs import curves, summary, utilization
from hfta_nb.figures.speeds import speedup

__all__ = ["curves", "gantt", "heat_map", "png", "speedup", "summary", "utilization"]
