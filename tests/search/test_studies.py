"""Studies with a search: trials are requested during the run, pruned, stored, and resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import optuna
import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StudyError

SPACE = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": [8, 16]}


def study(directory: Path, space: Any = None, **given: Any) -> hfta.Study:
    given = {"epochs": 3, "trials": 6, "slots": 3, "sampler": "random", "seed": 1, "dtype": "float64"} | given
    return hfta.Study("mlp", space or SPACE, "iris", directory=directory, device="cpu", strategy="fixed", **given)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    made = study(tmp_path_factory.mktemp("search") / "run", pruner="asha")
    assert len(made.variants) == 3
    for _ in made.run():
        pass
    return made


def test_all_trials_are_trained_and_told(ran: hfta.Study) -> None:
    table = ran.results()
    assert len(table) == len(ran.optuna.trials) == 6
    states = dict(zip(table.index, table["state"], strict=True))
    assert {trial.number: trial.state.name for trial in ran.optuna.trials} == states
    assert set(states.values()) == {"COMPLETE", "PRUNED"}
    assert ran.history.state == ev.COMPLETE
    for trial in ran.optuna.trials:
        [variant] = [v for v in ran.variants if v.id == trial.number]
        assert variant.config == trial.params
        curve = ran.history.members[trial.number].curves[ran.monitor]
        assert list(trial.intermediate_values.values()) == list(curve.values)


def test_the_best_trial_is_the_best_member(ran: hfta.Study) -> None:
    complete = [t for t in ran.optuna.trials if t.state.name == "COMPLETE"]
    assert ran.optuna.best_value == max(t.value for t in complete)
    assert ran.history.members[ran.optuna.best_trial.number].best_value == ran.optuna.best_value


def test_members_of_later_trials_are_what_they_are_alone(ran: hfta.Study) -> None:
    last = max(v.id for v in ran.variants)
    assert ran.check([last])["equal"].all()


def test_a_search_is_loaded_as_it_was(ran: hfta.Study) -> None:
    again = hfta.Study.load(ran.directory)
    assert [t.params for t in again.optuna.trials] == [t.params for t in ran.optuna.trials]
    assert again.results().equals(ran.results())
    assert [v.config for v in again.variants] == [v.config for v in ran.variants]


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(ran: hfta.Study, tmp_path: Path) -> None:
    cut = study(tmp_path / "run", pruner="asha")
    for event in cut.run():
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            break
    assert {t.state.name for t in cut.optuna.trials} <= {"RUNNING", "PRUNED"}
    again = hfta.Study.load(tmp_path / "run")
    for _ in again.run(resume=True):
        pass
    assert [t.params for t in again.optuna.trials] == [t.params for t in ran.optuna.trials]
    assert [t.state for t in again.optuna.trials] == [t.state for t in ran.optuna.trials]
    assert [t.value for t in again.optuna.trials] == [t.value for t in ran.optuna.trials]


def test_a_pinned_member_is_not_pruned(tmp_path: Path) -> None:
    made = study(tmp_path / "run", trials=3, pruner=optuna.pruners.ThresholdPruner(lower=2.0))  # prunes whatever comes
    control = hfta.Control()
    control.pin(1)
    for _ in made.run(control):
        pass
    states = made.results()["state"].to_dict()
    assert states == {0: "PRUNED", 1: "COMPLETE", 2: "PRUNED"}


def test_a_trial_that_can_not_be_planned_fails_and_the_others_train(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"width": 8 if trial.number != 3 else -1, "lr": trial.suggest_float("lr", 1e-3, 1e-1)}

    made = study(tmp_path / "run", space, trials=5)
    for _ in made.run():
        pass
    assert [t.state.name for t in made.optuna.trials] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    with pytest.raises(StudyError, match=r"is code, which is not loaded.*make the study again"):
        next(iter(hfta.Study.load(tmp_path / "run").run(epochs=4)))


def test_seeds_train_side_by_side(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"lr": SPACE["lr"], "seed": [0, 1]}, trials=2, slots=1, epochs=1)
    for _ in made.run():
        pass
    assert len(made.results()) == 4
    values = [made.history.members[k].best_value for k in range(4)]
    assert [t.value for t in made.optuna.trials] == pytest.approx([sum(values[:2]) / 2, sum(values[2:]) / 2])


WRONG = [
    ({"trials": None, "slots": None, "sampler": None}, "trials: how many configurations are tried is missing"),
    ({"trials": None, "space": {"lr": [1e-3]}, "slots": None}, "sampler: belongs to a search; got 'random'"),
    ({"trials": 0}, "trials: not a positive whole number; got 0"),
    ({"slots": 0}, "slots: not a positive whole number; got 0"),
    ({"space": [{"lr": 1e-3}]}, "grid: not a search space"),
    ({"pruner": "ashaa"}, "pruner: unknown pruner; got 'ashaa'"),
    ({"space": {"widht": [1, 2]}}, "did you mean width?"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_does_not_go_together_is_told(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(HftaError, match=re.escape(message)):
        study(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_study_that_searches_nothing_has_no_optuna_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"the study is no search.*trials=64"):
        _ = hfta.Study("mlp", {"lr": [1e-3]}, "iris", directory=tmp_path).optuna
