"""Samplers and pruners by name."""

from __future__ import annotations

import sys
from typing import Any

import optuna
import pytest

import hfta_nb as hfta
from hfta_nb.errors import SearchError
from hfta_nb.search import methods
from tests.search.fake import ended, epoch, searcher

INTERVALS = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "decay": hfta.uniform(0, 1)}
LISTS = {"lr": (1e-3, 1e-2), "width": (8, 16)}


@pytest.mark.parametrize("name", methods.SAMPLERS)
def test_every_sampler_proposes(name: str) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    search = searcher(LISTS if name == "grid" else INTERVALS, trials=4, sampler=name)
    configs = [trial.config for trial in search.ask(4)]
    assert len({str(config) for config in configs}) == 4
    assert all(config.keys() == (LISTS if name == "grid" else INTERVALS).keys() for config in configs)


def test_a_sampler_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(**_: Any) -> None:
        raise ImportError("no cmaes")

    monkeypatch.setattr(optuna.samplers, "CmaEsSampler", gone)
    with pytest.raises(SearchError, match=r"sampler: needs a package that is missing \(no cmaes\)"):
        methods.sampler_of("cmaes", INTERVALS, 0)


@pytest.mark.parametrize("name", methods.PRUNERS)
def test_every_pruner_is_optunas(name: str) -> None:
    assert isinstance(methods.pruner_of(name, 27), optuna.pruners.BasePruner)


@pytest.mark.parametrize("name", methods.PRUNERS)
def test_every_pruner_judges_trials_that_train_side_by_side(name: str) -> None:
    search = searcher(INTERVALS, trials=24, slots=4, pruner=name, sampler="random")
    while search.left:
        batch = search.ask(search.free)
        for trial in batch:
            search.started(trial, [trial.number])
        training = {trial.number for trial in batch}
        for number in range(1, 10):
            losses = {v: 1 + v % 4 + (-1 if v % 2 else 1) / (10 - number) for v in sorted(training)}
            for prune in search.saw(epoch(number, losses)):
                training.discard(prune.variant)
                search.saw(ended(prune.variant, "PRUNED"))
        for variant in training:
            search.saw(ended(variant))
    states = [trial.state.name for trial in search.optuna.trials]
    assert set(states) <= {"COMPLETE", "PRUNED"}
    assert states.count("COMPLETE") >= 4
    assert ("PRUNED" in states) is (name != "none")


def test_objects_are_taken_as_they_are() -> None:
    sampler, pruner = optuna.samplers.RandomSampler(), optuna.pruners.ThresholdPruner(upper=1.0)
    assert methods.sampler_of(sampler, {}, 0) is sampler
    assert methods.pruner_of(pruner, 3) is pruner


@pytest.mark.parametrize("given", ["tpee", 3])
def test_unknown_names(given: Any) -> None:
    with pytest.raises(SearchError, match=r"sampler: unknown sampler; got .*; accepted: random, tpe, .*BaseSampler"):
        methods.sampler_of(given, {}, 0)
    with pytest.raises(SearchError, match=r"pruner: unknown pruner; got .*; accepted: none, median, .*BasePruner"):
        methods.pruner_of(given, 3)


def test_a_grid_of_intervals_is_endless() -> None:
    with pytest.raises(SearchError, match=r'searches lists of values only.*choose "qmc"'):
        methods.sampler_of("grid", INTERVALS, 0)


def test_without_optuna_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SearchError, match=r"pip install 'hfta_nb\[search\]'"):
        hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", trials=2)
