"""Grids: axes and their ordered variants, and the parsing of typed values."""

from hfta_nb.search.grid.axes import (
    AxisSpec,
    Bounds,
    Depth,
    Factor,
    Grid,
    Layers,
    Size,
    Variant,
    check_name,
    configurations,
    show,
)
from hfta_nb.search.grid.nested import bare_name, check_flat
from hfta_nb.search.grid.parse import HINTS, KINDS, parse_axis, parse_values
from hfta_nb.search.grid.ranges import Integers, integers, linspace, logspace, seeds

__all__ = [
    "HINTS",
    "KINDS",
    "AxisSpec",
    "Bounds",
    "Depth",
    "Factor",
    "Grid",
    "Integers",
    "Layers",
    "Size",
    "Variant",
    "bare_name",
    "check_flat",
    "check_name",
    "configurations",
    "integers",
    "linspace",
    "logspace",
    "parse_axis",
    "parse_values",
    "seeds",
    "show",
]
