"""The rungs of a pruner: the epochs at which successive halving decides which trials go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfta_nb.search import methods
from hfta_nb.search.population import PBT, Halving


def rungs_of(given: Any, epochs: int) -> list[int]:
    """The epochs after which a pruner decides at its rungs; empty for one that has none, or does not say which.

    Args:
        given: the pruner, by its name or itself.
        epochs: of a trial that is not pruned; nothing is decided after the last.
    """
    return sorted({epoch for epoch in _rungs(methods.pruner_of(given, epochs), epochs) if epoch < epochs})


def rounds_at(method: PBT | Halving, epochs: int) -> list[int]:
    """The epochs after which a population method replaces members."""
    return list(range(method.every, epochs, method.every))


def _rungs(pruner: Any, epochs: int) -> Iterator[int]:
    # Optuna's pruners have no public names for what they were made with; both supported releases have these.
    pruners, own = methods.optuna().pruners, vars(pruner)
    if isinstance(pruner, pruners.PatientPruner) and own["_wrapped_pruner"] is not None:
        yield from _rungs(own["_wrapped_pruner"], epochs)
        return
    halving = isinstance(pruner, pruners.SuccessiveHalvingPruner | pruners.HyperbandPruner)
    first, factor = own.get("_min_resource"), own.get("_reduction_factor")
    if not halving or not isinstance(first, int) or not isinstance(factor, int):
        return  # the first rung may be "auto": it follows from the length of the first trial
    epoch = first * factor ** own.get("_min_early_stopping_rate", 0)
    while epoch < epochs:
        yield epoch
        epoch *= factor
