"""Axes to ordered variants, and the parsing of what a person types."""

from hfta_nb.grid.axes import (
    MAX_VARIANTS,
    AxisSpec,
    Bounds,
    Depth,
    Factor,
    Grid,
    Layers,
    Size,
    Variant,
    check_name,
    integers,
    linspace,
    logspace,
    seeds,
    show,
)
from hfta_nb.grid.parse import HINTS, KINDS, parse_axis, parse_scalar, parse_values

__all__ = [
    "HINTS",
    "KINDS",
    "MAX_VARIANTS",
    "AxisSpec",
    "Bounds",
    "Depth",
    "Factor",
    "Grid",
    "Layers",
    "Size",
    "Variant",
    "check_name",
    "integers",
    "linspace",
    "logspace",
    "parse_axis",
    "parse_scalar",
    "parse_values",
    "seeds",
    "show",
]
