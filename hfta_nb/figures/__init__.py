"""Figures of a run or a plan, for notebooks and export. Matplotlib is imported when the first of them is drawn."""

from hfta_nb.figures.axis_slices import slices
from hfta_nb.figures.best_so_far import best_so_far
from hfta_nb.figures.canvas import png
from hfta_nb.figures.confusion import confusion_matrix
from hfta_nb.figures.contours import contour
from hfta_nb.figures.ensembles import ensemble
from hfta_nb.figures.flotillas import gantt, placements
from hfta_nb.figures.fronts import pareto
from hfta_nb.figures.maps import heat_map
from hfta_nb.figures.parallel import parallel_coordinates
from hfta_nb.figures.runs import curves, summary, utilization
from hfta_nb.figures.shares import importances
from hfta_nb.figures.speeds import speedup

__all__ = [
    "best_so_far",
    "confusion_matrix",
    "contour",
    "curves",
    "ensemble",
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
