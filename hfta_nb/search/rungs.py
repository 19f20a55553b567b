"""The rungs of a pruner: the epochs at which successive halving decides which trials go on."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from hfta_nb.search import methods
from hfta_nb.search.population import PBT, Halving

_HALVING = ("asha", "hyperband")
_MARK = "completed_rung_"
"""Successive halving notes each rung that a trial has reached among the trial's `system_attrs`, by such a name."""
_BRACKETS = 16
"""Trials that are asked for to meet Hyperband's first bracket, which has all of its rungs and most of its trials."""
_HORIZON = 1000
"""Epochs within which a pruner that has rungs has its first one."""


def rungs_of(given: Any, epochs: int) -> list[int]:
    """The epochs after which a pruner decides at its rungs; empty for one that has none, or does not say which.

    Args:
        given: the pruner, by its name or itself.
        epochs: of a trial that is not pruned; nothing is decided after the last.
    """
    return list(_rungs(given, epochs))


def has_rungs(given: Any, epochs: int) -> bool:
    """Whether a pruner decides at rungs; see `rungs_of`. A study may be made longer than it is."""
    return next(_rungs(given, max(epochs, _HORIZON)), None) is not None


def rounds_at(method: PBT | Halving, epochs: int) -> list[int]:
    """The epochs after which a population method replaces members."""
    return list(range(method.every, epochs, method.every))


def _rungs(given: Any, epochs: int) -> Iterator[int]:
    if isinstance(given, str) and given in _HALVING:  # see `methods.pruner_of`
        powers = (methods.REDUCTION**power for power in itertools.count())
        yield from itertools.takewhile(lambda epoch: epoch < epochs, powers)
        return
    pruners = methods.optuna().pruners
    pruner: Any = methods.pruner_of(given, epochs)
    while isinstance(pruner, pruners.PatientPruner):
        pruner = getattr(pruner, "_wrapped_pruner", None)  # no public name: where it is missing, no rungs are known
    if isinstance(pruner, pruners.SuccessiveHalvingPruner | pruners.HyperbandPruner):
        yield from _marked(pruner, epochs)


def _marked(pruner: Any, epochs: int) -> Iterator[int]:
    """The epochs at which a trial that is never worse than others reaches rungs.

    What a pruner was made with has no public names, and those differ between classes. What it does is the same in all
    releases: so a copy of it judges trials of a study in memory.
    """
    package = methods.optuna()
    with methods.quiet():
        # Hyperband chooses a trial's bracket by the name of the study.
        how = {"study_name": "rungs", "sampler": package.samplers.RandomSampler(0)}
        study = package.create_study(pruner=copy.deepcopy(pruner), **how)
    count = _BRACKETS if isinstance(pruner, package.pruners.HyperbandPruner) else 1
    trials, met = [study.ask() for _ in range(count)], 0
    for epoch in range(1, epochs):
        for trial in trials:
            trial.report(0.0, epoch)
            trial.should_prune()
        frozen = study.get_trials(deepcopy=False)
        marks = [sum(name.startswith(_MARK) for name in frozen[trial.number].system_attrs) for trial in trials]
        if max(marks) > met:
            trials, met = [trials[marks.index(max(marks))]], max(marks)
            yield epoch
