"""Which variants train together, and why the others do not."""

from __future__ import annotations

from hfta_nb.train.plan.building import Builder, parameters_of
from hfta_nb.train.plan.group import Group
from hfta_nb.train.plan.grouping import MOST_PADDING, SPLITTING, make_plan, reckoned, whole

__all__ = [
    "MOST_PADDING",
    "SPLITTING",
    "Builder",
    "Group",
    "make_plan",
    "parameters_of",
    "reckoned",
    "whole",
]
