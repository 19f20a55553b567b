"""A search follows its members: it reports, prunes, and continues after an interruption."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import optuna
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import SearchError
from hfta_nb.records.events import Prune
from hfta_nb.search import Searcher, searcher_from_json, searcher_to_json
from hfta_nb.search.trials import aggregate
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


def test_why_a_trial_failed_is_kept() -> None:
    search = searcher(SPACE)
    *_, third = begun(search, 3)
    search.saw(ev.MemberChanged(0.0, 0, ev.WAITING, "to be tried alone: ValueError: no luck"))
    assert states(search) == ["RUNNING"] * 3
    search.saw(ev.MemberChanged(0.0, 0, ev.FAILED, "ValueError: no luck"))
    search.saw(ev.MemberChanged(0.0, 1, ev.DIVERGED, "training loss is not finite in epoch 1"))
    search.refused(third, "width: too small")
    assert states(search) == ["FAIL"] * 3
    assert [t.user_attrs["reason"] for t in search.optuna.trials] == [
        "ValueError: no luck", "training loss is not finite in epoch 1", "width: too small"]  # fmt: skip


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


def test_a_constraint_that_fails_says_so() -> None:
    search = searcher(SPACE, constraint=lambda config: config["no such axis"] > 1)
    with pytest.raises(SearchError, match="constraint: raises KeyError: 'no such axis'"):
        search.ask(1)
    assert states(search) == ["FAIL"]


def test_a_grid_has_so_many_trials_as_it_has_points() -> None:
    search = searcher({"lr": [1, 2, 3], "width": [8, 16]}, trials=50, slots=50, sampler="grid")
    found = begun(search, 50)
    assert len({str(trial.config) for trial in found}) == len(found) == 6
    for trial in found:
        search.saw(epoch(1, {trial.number: 0.5}))
        search.saw(ended(trial.number))
    assert states(search) == ["COMPLETE"] * 6


class Disk:
    """What a study's database has of a search."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}

    def keep(self, search: Searcher) -> None:
        self.bodies |= json.loads(json.dumps(search.changes()))


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc", "cmaes", "gp"])
def test_a_search_that_is_resumed_asks_for_what_it_would_have_asked_for(sampler: str) -> None:
    space = {"lr": SPACE["lr"], "decay": hfta.uniform(0, 1)}

    def half(search: Searcher) -> None:
        begun(search)
        for variant in range(4):
            search.saw(epoch(1, {variant: 0.1 * variant}))
            search.saw(ended(variant))

    whole, cut = (searcher(space, sampler=sampler) for _ in range(2))
    half(whole)
    half(cut)
    resumed, disk = searcher(space, sampler=sampler), Disk()
    disk.keep(cut)
    resumed.take_up(disk.bodies)
    assert [trial.config for trial in resumed.ask(4)] == [trial.config for trial in whole.ask(4)]


def test_only_what_has_changed_is_given() -> None:
    search, disk = searcher(SPACE), Disk()
    begun(search, 3)
    assert sorted(search.changes()) == ["000000", "000001", "000002", "study"]
    search.saw(epoch(1, {1: 0.5}))
    assert list(search.changes()) == ["000001"]
    assert search.changes() == {}
    search.touch()
    disk.keep(search)
    again = searcher(SPACE)
    again.take_up(disk.bodies)
    assert again.changes().keys() == {"study"}


def test_trials_are_taken_up_where_they_were() -> None:
    search, disk = searcher(SPACE, pruner=optuna.pruners.ThresholdPruner(upper=0.5)), Disk()
    begun(search, 2)
    search.ask(1)  # and killed before it was planned
    search.saw(epoch(1, {0: 0.3, 1: 0.9}))
    search.saw(ended(1, ev.PRUNED))
    disk.keep(search)
    again = searcher(SPACE, pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    again.take_up(disk.bodies)
    again.recall(epoch(1, {0: 0.3, 1: 0.9}))
    assert [trial.number for trial in again.waiting] == [2]
    assert again.free == 2
    # The checkpoint is of before the first epoch: what was reported is not reported again, and the pruned one ends.
    assert again.saw(epoch(1, {0: 0.3, 1: 0.9})) == [Prune(1, "pruned after epoch 1: val_loss 0.9")]
    again.saw(ended(0))
    assert again.optuna.trials[0].value == 0.3


class Once(optuna.pruners.BasePruner):
    """Has its say about each trial once, as successive halving has about each rung."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        known = trial.number in self.asked
        self.asked.add(trial.number)
        return not known and trial.intermediate_values[1] > 0.3


@pytest.mark.parametrize("pruner", ["asha", Once()])
def test_the_pruner_says_the_same_again_after_a_kill_between_its_word_and_the_members_end(pruner: Any) -> None:
    search, disk = searcher(SPACE, pruner=pruner, slots=6, trials=6), Disk()
    begun(search, 6)
    losses = {0: 0.6, 1: 0.1, 2: 0.5, 3: 0.2, 4: 0.4, 5: 0.3}
    said = search.saw(epoch(1, losses))
    assert said
    disk.keep(search)
    again = searcher(SPACE, pruner=pruner, slots=6, trials=6)
    again.take_up(disk.bodies)
    assert again.saw(epoch(1, losses)) == said


def test_a_trial_that_is_damaged_is_a_failed_one_and_the_others_keep_their_numbers() -> None:
    search, disk = searcher(SPACE), Disk()
    begun(search, 4)
    search.saw(epoch(1, {3: 0.5}))
    search.saw(ended(3))
    disk.keep(search)
    del disk.bodies["000001"]
    disk.bodies["000002"]["params"] = "?"
    again = searcher(SPACE)
    again.take_up(disk.bodies)
    assert states(again) == ["RUNNING", "FAIL", "FAIL", "COMPLETE"]
    assert again.optuna.best_trial.number == 3
    assert again.optuna.trials[3].params == search.optuna.trials[3].params


def test_the_worse_bound_of_seeds_counts_where_it_is_asked_for() -> None:
    values = [0.2, 0.6]
    error = statistics.stdev(values) / math.sqrt(2)
    for maximize, bound in ((False, 0.4 + error), (True, 0.4 - error)):
        search = searcher(SPACE | {"seed": [0, 1]}, monitor=("val_loss", maximize), seeds_by="bound")
        [trial] = search.ask(1)
        search.started(trial, [0, 1])
        search.saw(epoch(1, dict(enumerate(values))))
        assert search.optuna.trials[0].intermediate_values == {1: pytest.approx(bound)}
        search.saw(ended(0))
        search.saw(ended(1))
        assert search.optuna.trials[0].value == pytest.approx(bound)
    assert aggregate([0.5], True, "bound") == 0.5


def test_several_objectives_are_told_of_and_nothing_is_pruned() -> None:
    others = (("val_error", False), ("parameters", False))
    search = searcher(SPACE, monitor=("val_accuracy", True), others=others)
    search.cost = lambda variant, name: {"parameters": 100.0 + variant}[name]
    begun(search, 2)
    for number, values in enumerate([(0.5, 0.9), (0.8, 0.7), (0.6, 0.1)], 1):
        accuracy, error = values
        metrics = {"val_accuracy": (accuracy, 0.2), "val_error": (error, 0.5)}
        assert search.saw(ev.EpochDone(0.0, 0, number, number, (0, 1), metrics)) == []
    search.saw(ended(0))
    search.saw(ended(1, ev.DIVERGED))
    assert search.optuna.trials[0].values == [0.8, 0.7, 100.0]  # at the best epoch, the second
    assert states(search) == ["COMPLETE", "FAIL"]
    assert [d.name for d in search.optuna.directions] == ["MAXIMIZE", "MINIMIZE", "MINIMIZE"]
    assert [t.number for t in search.optuna.best_trials] == [0]


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc", pytest.param("gp", marks=pytest.mark.long)])
def test_samplers_of_several_objectives(sampler: str) -> None:
    if sampler == "gp" and optuna.__version__.startswith("4.0."):
        with pytest.raises(SearchError, match="sampler: searches one objective only; got 'gp'"):
            searcher(SPACE, sampler=sampler, others=(("parameters", False),))
        return
    search = searcher(SPACE, sampler=sampler, others=(("parameters", False),), trials=16)
    search.cost = lambda variant, name: float(variant)
    for _ in range(12):
        [trial] = begun(search, 1)
        search.saw(epoch(1, {trial.number: 1 / (1 + trial.number)}))
        search.saw(ended(trial.number))
    assert len({str(t.params) for t in search.optuna.trials}) == 12


def test_what_several_objectives_rule_out() -> None:
    others = (("parameters", False),)
    with pytest.raises(SearchError, match="pruner: trials of several objectives can't be pruned"):
        searcher(SPACE, pruner="asha", others=others)
    with pytest.raises(SearchError, match="sampler: searches one objective only; got 'cmaes'"):
        searcher(SPACE, sampler="cmaes", others=others)


def test_a_search_is_kept_as_json() -> None:
    space = SPACE | {"activation": ["relu", "gelu"], "decay": optuna.distributions.FloatDistribution(0, 1), "seed": [1]}
    search = searcher(space, sampler="tpe", pruner="asha")
    kept = searcher_to_json(search)
    assert kept is not None
    again = searcher_from_json(kept, 9, ("val_loss", False))
    assert searcher_to_json(again) == kept
    assert [t.config for t in again.ask(3)] == [t.config for t in search.ask(3)]
    assert searcher_to_json(searcher(lambda trial: {"lr": trial.suggest_float("lr", 0, 1)})) is None
    assert searcher_to_json(searcher(SPACE, constraint=lambda config: True)) is None
    assert searcher_to_json(searcher(SPACE, sampler="cmaes")) is None
    assert searcher_to_json(searcher(SPACE, pruner=optuna.pruners.NopPruner())) is None
