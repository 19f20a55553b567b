"""Figures of a run, for notebooks and export."""

from hfta_nb.figures.canvas import png
from hfta_nb.figures.maps import heat_map
from hfta_nb.figures.runs import curves, summary, utilization
from hfta_nb.figures.speeds import speedup

__all__ = ["curves", "heat_map", "png", "speedup", "summary", "utilization"]
