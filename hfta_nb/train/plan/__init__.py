"""Which variants train together, and why the others do not."""

from __future__ import annotations

from hfta_nb.train.plan.building import Builder, parameters_of
from hfta_nb.train.plan.group import Group
from hfta_nb.train.plan.grouping import MOST_PADDING, make_plan, reckoned, whole
from hfta_nb.train.plan.rows import rows_apart

__all__ = [
    "MOST_PADDING",
    "Builder",
    "Group",
    "make_plan",
    "parameters_of",
    "reckoned",
    "rows_apart",
    "whole",
]
