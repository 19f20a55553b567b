"""Finds which computation a process was trying when it ended."""

from hfta_nb.engine.array.access import under_trial

__all__ = ["under_trial"]
