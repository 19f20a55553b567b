"""A search with scripted members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb import events as ev
from hfta_nb.search import Searcher


def searcher(space: Any, trials: int = 8, slots: int = 4, **given: Any) -> Searcher:
    """A search that minimises val_loss over nine epochs."""
    arguments = {"sampler": "random", "pruner": "none", "epochs": 9, "monitor": ("val_loss", False), "seed": 0} | given
    return Searcher(space, trials, slots, **arguments)


def epoch(number: int, values: Mapping[int, float]) -> ev.EpochDone:
    """The end of an epoch, with a value of each variant."""
    return ev.EpochDone(0.0, 0, number, number, tuple(values), {"val_loss": tuple(values.values())})


def ended(variant: int, state: str = ev.COMPLETE) -> ev.MemberChanged:
    return ev.MemberChanged(0.0, variant, state)
