"""A search that is left when all members of an array were pruned, just before others take their places, goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from search.random_operations import accounted_for, differences
from search.test_going_on import LR, search

import hfta_nb as hfta
from hfta_nb import events as ev

SLOTS, TRIALS = 3, 8
SPACES: dict[str, dict[str, Any]] = {
    "alike": {"lr": LR},
    "widths": {"width": [4, 8], "p": [0.0, 0.2]},
    "arrays": {"optimizer": ["sgd", "adam"]},
    "seeds": {"seed": [0, 1]},
}


class FirstOnes(optuna.pruners.BasePruner):
    """Prunes the trials that train first after an epoch, all at once."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.number < SLOTS and trial.last_step == 1


def made(directory: Path, space: str, sampler: str) -> hfta.Study:
    how = {"slots": SLOTS, "trials": TRIALS, "epochs": 3, "pruner": FirstOnes(), "sampler": sampler}
    return search(directory, SPACES[space], **how)


def summary(study: hfta.Study) -> tuple[Any, ...]:
    """Everything that came of a search: trials, configurations, states, curves."""
    trials = [(t.number, t.state, t.params, t.intermediate_values, t.values) for t in study.optuna.trials]
    members: Mapping[int, Any] = study.history.members
    ended = {i: (m.state, m.reason, m.epoch, m.best_epoch) for i, m in members.items()}
    curves = {i: {n: c.values for n, c in m.curves.items()} for i, m in members.items()}
    return trials, [v.config for v in study.variants], ended, curves


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], hfta.Study]:
    @functools.cache
    def ran(space: str, sampler: str) -> hfta.Study:
        study = made(tmp_path_factory.mktemp("undisturbed") / "run", space, sampler)
        list(study.run())
        return study

    return ran


@pytest.mark.pairs
@pytest.mark.only(sampler="random", later=0)
@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("later", [0, 1, 2], ids=lambda n: f"{n} events later")
@pytest.mark.parametrize("space", SPACES)
def test_a_search_left_when_all_were_pruned_goes_on(
    space: str, later: int, sampler: str, tmp_path: Path, undisturbed: Callable[[str, str], hfta.Study]
) -> None:
    whole = undisturbed(space, sampler)
    first = made(tmp_path / "run", space, sampler)
    pruned, left = set[int](), later
    for event in first.run():
        if isinstance(event, ev.MemberChanged) and event.state == ev.PRUNED:
            pruned.add(event.variant)
        if len(pruned) == sum(m.state == ev.PRUNED for m in whole.history.members.values()):
            if not left:
                break
            left -= 1
    assert len(pruned) >= SLOTS
    assert not {m.id for m in first.history.members.values() if m.state == ev.RUNNING} & pruned
    again = made(tmp_path / "run", space, sampler)
    list(again.run(resume=True))
    assert accounted_for(again, TRIALS)
    assert max(differences(again).values()) < 1e-10
    assert summary(again) == summary(whole)
