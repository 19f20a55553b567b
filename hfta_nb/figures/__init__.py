"""Figures of a run: what a saved notebook keeps, and what is exported."""

from hfta_nb.figures.canvas import png
from hfta_nb.figures.runs import curves, summary, utilization

__all__ = ["curves", "png", "summary", "utilization"]
