"""Studies with a search: trials are requested during the run, pruned, stored, and resumed."""

from __future__ import annotations

import contextlib
import pickle
import re
import runpy
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FamilyError, HftaError, StudyError
from hfta_nb.search import saved

SPACE = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": [8, 16]}


def study(directory: Path, space: Any = None, **given: Any) -> hfta.Study:
    given = {"epochs": 3, "trials": 6, "slots": 3, "sampler": "random", "seed": 1, "dtype": "float64"} | given
    return hfta.Study("mlp", space or SPACE, "iris", directory=directory, device="cpu", strategy="fixed", **given)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    made = study(tmp_path_factory.mktemp("search") / "run", pruner="asha")
    assert len(made.variants) == 3
    list(made.run())
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


def cell(code: str, folder: Path) -> hfta.Study:
    """The study of a cell, which is not run."""
    path = folder / "cell.py"
    path.write_text(code.split("for event in")[0])
    made = runpy.run_path(str(path))["study"]
    assert isinstance(made, hfta.Study)
    return made


def test_code_reproduces_the_search(ran: hfta.Study, tmp_path: Path) -> None:
    for made in (ran, hfta.Study.load(ran.directory)):
        twin = cell(made.to_code(), tmp_path)
        assert saved.searcher_to_json(twin.searcher) == saved.searcher_to_json(ran.searcher)
        assert twin.options == ran.options
        assert not twin.added
        assert [v.config for v in twin.variants] == [v.config for v in ran.variants[:3]]


def better_of_two(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 1e-3, 1e-1)}


def test_code_of_a_search_names_what_is_code(tmp_path: Path) -> None:
    optional: dict[str, Any] = {"constraint": lambda config: True, "pruner": optuna.pruners.NopPruner()}
    made = study(tmp_path / "a", better_of_two, seeds_by="bound", **optional)
    made.add({"lr": 0.5})
    words = made.to_code()
    for part in ("    better_of_two,  # a function of an Optuna trial", "pruner=pruner,  # NopPruner",
                 "constraint=constraint,  #", "seeds_by='bound'", "trials=6", "study.add([{'lr': 0.5}])"):  # fmt: skip
        assert part in words
    compile(words, "cell", "exec")
    axes = {"lr": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True), "width": hfta.integers(8, 16, 4),
            "dropout": hfta.uniform(0, 0.5, step=0.25), "seed": [0, 1]}  # fmt: skip
    words = study(tmp_path / "b", axes).to_code()
    assert words.startswith("import optuna\nimport hfta_nb as hfta\n")
    searcher = cell(words, tmp_path).searcher
    assert searcher is not None
    assert searcher.space == {name: axis for name, axis in axes.items() if name != "seed"}
    assert searcher.seeds == [0, 1]


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
    list(again.run(resume=True))
    assert [t.params for t in again.optuna.trials] == [t.params for t in ran.optuna.trials]
    assert [t.state for t in again.optuna.trials] == [t.state for t in ran.optuna.trials]
    assert [t.value for t in again.optuna.trials] == [t.value for t in ran.optuna.trials]


def test_a_pinned_member_is_not_pruned(tmp_path: Path) -> None:
    made = study(tmp_path / "run", trials=3, pruner=optuna.pruners.ThresholdPruner(lower=2.0))  # prunes whatever comes
    control = hfta.Control()
    control.pin(1)
    list(made.run(control))
    states = made.results()["state"].to_dict()
    assert states == {0: "PRUNED", 1: "COMPLETE", 2: "PRUNED"}


def test_a_trial_that_can_not_be_planned_fails_and_the_others_train(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"width": 8 if trial.number != 3 else -1, "lr": trial.suggest_float("lr", 1e-3, 1e-1)}

    made = study(tmp_path / "run", space, trials=5)
    list(made.run())
    assert [t.state.name for t in made.optuna.trials] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    with pytest.raises(StudyError, match=r"is code, which is not loaded.*make the study again"):
        next(iter(hfta.Study.load(tmp_path / "run").run(epochs=4)))


def headed(width: int = 12, heads: int = 2) -> nn.Module:
    if width % heads:
        raise ValueError(f"{heads} heads do not divide {width}")
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


@pytest.mark.parametrize("slots", [1, 3])
def test_first_trials_that_can_not_be_built_fail_alone(slots: int, tmp_path: Path) -> None:
    def made(**given: Any) -> hfta.Study:
        return hfta.Study(headed, {"width": [8, 12, 16], "heads": [2, 3, 5]}, "iris", epochs=2, trials=7, device="cpu",
                          slots=slots, sampler="random", directory=tmp_path / "run", **given)  # fmt: skip

    first = made()
    assert all(v.config["width"] % v.config["heads"] == 0 for v in first.variants)
    for event in first.run():
        if isinstance(event, ev.EpochDone):
            break
    again = made()
    again.fit(resume=True, progress=False)
    trials = again.optuna.trials
    assert trials[0].state.name == "FAIL"
    assert "heads do not divide" in trials[0].user_attrs["reason"]
    expected = ["FAIL" if t.params["width"] % t.params["heads"] else "COMPLETE" for t in trials]
    assert [t.state.name for t in trials] == expected
    assert len(trials) == 7
    assert [v.config for v in again.variants] == [t.params for t in trials if t.state.name == "COMPLETE"]


def test_a_search_that_can_build_none_says_why(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"\d heads do not divide 12"):
        hfta.Study(headed, {"heads": [5, 7]}, "iris", trials=3, directory=tmp_path / "run")


def test_seeds_train_side_by_side(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"lr": SPACE["lr"], "seed": [0, 1]}, trials=2, slots=1, epochs=1)
    list(made.run())
    assert len(made.results()) == 4
    values = [made.history.members[k].best_value for k in range(4)]
    assert [t.value for t in made.optuna.trials] == pytest.approx([sum(values[:2]) / 2, sum(values[2:]) / 2])


def test_both_levels_of_seeds_are_in_the_tables(tmp_path: Path) -> None:
    space = {"lr": SPACE["lr"], "seed": [0, 1]}
    made = study(tmp_path / "run", space, trials=2, slots=2, epochs=1, seeds_by="bound")
    list(made.run())
    table, averaged = made.results(), made.results(over="seed")
    assert table["trial"].to_dict() == {0: 0, 1: 0, 2: 1, 3: 1}
    assert len(averaged) == 2
    bounds = {table["trial"][row["members"][0]]: row[f"{made.monitor}_bound"] for _, row in averaged.iterrows()}
    assert {t.number: t.value for t in made.optuna.trials} == pytest.approx(bounds)
    assert hfta.Study.load(tmp_path / "run").seeds_by == "bound"


def test_several_objectives(tmp_path: Path) -> None:
    monitor = ["val_accuracy", "val_loss", "parameters", "time_s"]
    made = study(tmp_path / "run", sampler="tpe", monitor=monitor, trials=4, slots=2, padding=0.9)
    list(made.run())
    table = made.results()
    sizes = {i: sum(p.numel() for p in made.member(i).module().parameters()) for i in range(4)}
    assert len(set(sizes.values())) == 2
    for trial in made.optuna.trials:
        row = table.loc[trial.number]
        accuracy, loss, parameters, time_s = trial.values
        assert (accuracy, loss) == (row["val_accuracy"], row["val_loss"])
        assert parameters == sizes[trial.number]
        assert 0 < time_s <= row["time_s"]
    assert [d.name for d in made.optuna.directions] == ["MAXIMIZE", "MINIMIZE", "MINIMIZE", "MINIMIZE"]
    again = hfta.Study.load(tmp_path / "run")
    assert again.objectives == made.objectives
    assert [t.values for t in again.optuna.trials] == [t.values for t in made.optuna.trials]
    assert len(again.pareto().axes) == 6
    assert again.best().variant.id == table.index[0]


def test_a_grid_has_objectives_as_well(tmp_path: Path) -> None:
    made = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1, directory=tmp_path, device="cpu",
                      monitor=["val_loss", "parameters"])  # fmt: skip
    list(made.run())
    assert made.pareto().axes[0].get_xlabel() == "parameters (less is better)"
    for draw in (made.slices, made.curves, made.importances):
        with pytest.raises(HftaError) if draw == made.importances else contextlib.nullcontext():
            assert draw().axes


def test_every_figure_of_a_search(ran: hfta.Study) -> None:
    found = [ran.importances(), ran.parallel_coordinates(), ran.slices(), ran.contour("lr", "width"), ran.curves()]
    found += [ran.pareto("val_accuracy", "time_s"), ran.slices("train_loss")]
    assert all(figure.axes for figure in found)
    assert ran.slices().axes[0].get_xscale() == "log"
    with pytest.raises(StudyError, match="objectives: a Pareto front needs several objectives"):
        ran.pareto()


def test_results_have_what_members_took(ran: hfta.Study) -> None:
    table = ran.results()
    assert table["time_share"].sum() == pytest.approx(1)
    assert (table["time_s"] > 0).all()
    shares = {i: 1 / len(g.variants) for g in ran.groups() for i in g.variants}
    assert table["memory_share"].to_dict() == pytest.approx(shares)
    assert (table["memory_bytes"] > 0).all()
    last = ran.history.members[0].curves["val_loss"].values[-1]
    assert table["last_val_loss"][0] == last
    assert list(table["seed"]) == [0] * 6


WRONG = [
    ({"trials": None, "slots": None, "sampler": None}, "trials: a search space needs a number of trials"),
    ({"trials": None, "space": {"lr": [1e-3]}, "slots": None}, "sampler: belongs to a search; got 'random'"),
    ({"trials": 0}, "trials: not a positive whole number; got 0"),
    ({"slots": 0}, "slots: not a positive whole number; got 0"),
    ({"space": [{"lr": 1e-3}]}, "grid: not a search space"),
    ({"seeds_by": "median"}, "seeds_by: unknown choice; got 'median'; accepted: mean, bound"),
    (
        {"trials": None, "space": {"lr": [1e-3]}, "slots": None, "sampler": None, "seeds_by": "bound"},
        "seeds_by: belongs to a search; got 'bound'",
    ),
    ({"monitor": ["parameters", "val_loss"]}, "monitor: the first objective decides which epoch is best"),
    ({"monitor": ["val_loss", "size"]}, "monitor: unknown metric; got 'size'; accepted: val_loss"),
    ({"monitor": ["val_loss", "val_loss"]}, "monitor: is there twice"),
    ({"monitor": []}, "monitor: not a metric or a list of objectives"),
    ({"monitor": ["val_loss", "time_s"], "pruner": "asha"}, "pruner: trials of several objectives can't be pruned"),
    ({"pruner": "ashaa"}, "pruner: unknown pruner; got 'ashaa'"),
    ({"space": {"widht": [1, 2]}}, "did you mean width?"),
    ({"space": {"width": [8, "x"]}}, "width: not a number; got 'x'; accepted: whole numbers"),
    ({"space": {"width": hfta.integers(-8, 8)}}, "width: out of bounds; got -8"),
    ({"space": {"lr": hfta.uniform(-1, 1)}}, "lr: out of bounds; got -1.0; accepted: at least 0"),
    ({"space": {"width": hfta.uniform(1, 8)}}, "width: not an interval of whole numbers"),
    ({"space": {"width": hfta.uniform(1, 8)}}, "say hfta.integers(1, 8)"),
    ({"space": {"width": optuna.distributions.IntDistribution(0, 8)}}, "width: out of bounds; got 0"),
    ({"space": {"optimizer": optuna.distributions.CategoricalDistribution(["adamm"])}}, "did you mean adam?"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_does_not_go_together_is_told(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(HftaError, match=re.escape(message)):
        study(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_study_that_searches_nothing_has_no_optuna_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"the study is no search.*trials=64"):
        _ = hfta.Study("mlp", {"lr": [1e-3]}, "iris", directory=tmp_path).optuna


def test_a_study_that_has_searched_can_be_sent_to_another_process(tmp_path: Path) -> None:
    study = hfta.Study(_sent, _space, (torch.ones(8, 4), torch.ones(8, 1)), epochs=1, trials=2, directory=tmp_path)
    study.fit(progress=False)
    again = pickle.loads(pickle.dumps(study))  # noqa: S301 - made here
    assert again.results().equals(study.results())


def _sent(width: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))


def _space(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.1), "width": trial.suggest_int("width", 2, 4)}
