"""A search follows its members: it reports, prunes, and continues after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import SearchError
from hfta_nb.events import Prune
from hfta_nb.search import Searcher, heard, told
from tests.search.fake import ended, epoch, searcher

SPACE = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(8, 64)}


def begun(search: Searcher, count: int = 4) -> list[Any]:
    trials = search.ask(count)
    for trial in trials:
        search.started(trial, [trial.number])
    return trials


def states(search: Searcher) -> list[str]:
    return [trial.state.name for trial in search.optuna.trials]


def test_slots_are_free_until_they_are_asked_for_and_again_when_trials_end() -> None:
    search = searcher(SPACE, trials=6)
    assert (search.free, search.left) == (4, 6)
    begun(search)
    assert (search.free, search.left) == (0, 2)
    search.saw(ended(2))
    assert search.free == 1
    for variant in (0, 1, 3):
        search.saw(ended(variant))
    assert search.free == 2  # of the six


def test_the_best_value_is_told_of_a_trial_that_completes() -> None:
    search = searcher(SPACE)
    begun(search, 2)
    for number, value in enumerate([0.5, 0.2, 0.3], 1):
        search.saw(epoch(number, {0: value, 1: 1.0}))
    search.saw(ended(0))
    assert states(search) == ["COMPLETE", "RUNNING"]
    assert search.optuna.best_value == 0.2
    assert search.optuna.trials[0].intermediate_values == {1: 0.5, 2: 0.2, 3: 0.3}


@pytest.mark.parametrize(
    ("state", "found"),
    [(ev.PRUNED, "PRUNED"), (ev.STOPPED, "PRUNED"), (ev.DIVERGED, "FAIL"), (ev.FAILED, "FAIL")],
)
def test_how_members_end_is_told(state: str, found: str) -> None:
    search = searcher(SPACE)
    begun(search, 1)
    search.saw(epoch(1, {0: 0.5}))
    search.saw(ended(0, state))
    assert states(search) == [found]


def test_of_trials_that_train_together_the_worst_are_pruned() -> None:
    search = searcher(SPACE, slots=6, pruner=optuna.pruners.SuccessiveHalvingPruner(1, reduction_factor=3))
    begun(search, 6)
    losses = {0: 0.6, 1: 0.1, 2: 0.5, 3: 0.2, 4: 0.4, 5: 0.3}
    pruned = search.saw(epoch(1, losses))
    assert sorted(prune.variant for prune in pruned) == [0, 2, 4, 5]
    assert "pruned after epoch 1: val_loss 0.6" in {prune.reason for prune in pruned}


def test_nothing_is_pruned_after_the_last_epoch_or_by_a_value_that_is_not_finite() -> None:
    search = searcher(SPACE, epochs=3, pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    begun(search, 2)
    assert search.saw(epoch(1, {0: float("nan"), 1: 0.4})) == []
    assert search.saw(epoch(3, {0: 0.9, 1: 0.9})) == []
    assert search.saw(ev.EpochDone(0.0, 0, 2, 2, (0, 1), {"train_loss": (9.0, 9.0)})) == []


def test_seeds_of_a_trial_count_by_their_mean_and_are_pruned_together() -> None:
    search = searcher(SPACE | {"seed": [0, 1]}, pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    first, second = search.ask(2)
    assert [config["seed"] for config in search.configurations(first)] == [0, 1]
    search.started(first, [0, 1])
    search.started(second, [2, 3])
    assert search.saw(epoch(1, {0: 0.2, 1: 0.6, 2: 0.3})) == []  # one of the second is still to come
    found = search.saw(epoch(1, {3: 0.9}))
    assert [prune.variant for prune in found] == [2, 3]
    assert search.optuna.trials[0].intermediate_values == {1: pytest.approx(0.4)}
    search.saw(ended(0))
    assert states(search)[0] == "RUNNING"
    search.saw(epoch(2, {1: 0.4}))
    search.saw(ended(1))
    assert search.optuna.trials[0].value == pytest.approx(0.3)  # of 0.2 and 0.4


def test_a_constraint_is_kept() -> None:
    search = searcher(SPACE, constraint=lambda config: config["width"] < 20)
    assert all(trial.config["width"] < 20 for trial in search.ask(6))
    never = searcher(SPACE, constraint=lambda config: False)
    with pytest.raises(SearchError, match="constraint: rejects 100 configurations one after another"):
        never.ask(1)


def test_a_grid_has_so_many_trials_as_it_has_points() -> None:
    search = searcher({"lr": [1, 2, 3], "width": [8, 16]}, trials=50, slots=50, sampler="grid")
    found = begun(search, 50)
    assert len({str(trial.config) for trial in found}) == len(found) == 6
    for trial in found:
        search.saw(epoch(1, {trial.number: 0.5}))
        search.saw(ended(trial.number))
    assert states(search) == ["COMPLETE"] * 6


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc"])
def test_a_search_that_is_resumed_asks_for_what_it_would_have_asked_for(tmp_path: Path, sampler: str) -> None:
    def half(search: Searcher) -> None:
        search.keep(tmp_path / f"{id(search)}.log")
        begun(search)
        for variant in range(4):
            search.saw(epoch(1, {variant: 0.1 * variant}))
            search.saw(ended(variant))

    whole, cut = (searcher(SPACE, sampler=sampler) for _ in range(2))
    half(whole)
    half(cut)
    resumed = searcher(SPACE, sampler=sampler)
    resumed.keep(tmp_path / f"{id(cut)}.log")
    assert [trial.config for trial in resumed.ask(4)] == [trial.config for trial in whole.ask(4)]


def test_trials_are_taken_up_where_they_were(tmp_path: Path) -> None:
    search = searcher(SPACE, pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    search.keep(tmp_path / "log")
    begun(search, 2)
    search.ask(1)  # and killed before it was planned
    search.saw(epoch(1, {0: 0.3, 1: 0.9}))
    search.saw(ended(1, ev.PRUNED))
    again = searcher(SPACE, pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    again.keep(tmp_path / "log")
    again.recall(epoch(1, {0: 0.3, 1: 0.9}))
    assert [trial.number for trial in again.waiting] == [2]
    assert again.free == 2
    # The checkpoint is of before the first epoch: what was reported is not reported again, and the pruned one ends.
    assert again.saw(epoch(1, {0: 0.3, 1: 0.9})) == [Prune(1, "pruned after epoch 1")]
    again.saw(ended(0))
    assert again.optuna.trials[0].value == 0.3


def test_a_search_is_kept_as_json() -> None:
    space = SPACE | {"activation": ["relu", "gelu"], "decay": optuna.distributions.FloatDistribution(0, 1), "seed": [1]}
    search = searcher(space, sampler="tpe", pruner="asha")
    kept = told(search)
    assert kept is not None
    again = heard(kept, 9, ("val_loss", False))
    assert told(again) == kept
    assert [t.config for t in again.ask(3)] == [t.config for t in search.ask(3)]
    assert told(searcher(lambda trial: {"lr": trial.suggest_float("lr", 0, 1)})) is None
    assert told(searcher(SPACE, constraint=lambda config: True)) is None
    assert told(searcher(SPACE, sampler="cmaes")) is None
    assert told(searcher(SPACE, pruner=optuna.pruners.NopPruner())) is None
